"""Zip files of finished runs, to play elsewhere what was trained here: see benchmarks/tasks_suite.py."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load, save

from nsde_policy.files import replace_file

ARCHIVE_BYTES = 15 * 2**20
"""Most bytes of weights in a file."""
RUN_FILES = ("config.json", "training.json", "model.safetensors")
"""Files of a finished run."""


def pack_runs(runs: Path, folders: Sequence[str], out: Path) -> None:
    """Write finished runs, folders of `runs`, as zip files into `out`, matrices in half precision."""
    part, size = 0, ARCHIVE_BYTES + 1
    for name in folders:
        run = runs / name
        if not all((run / file).exists() for file in RUN_FILES):
            continue
        weights = load((run / "model.safetensors").read_bytes())
        packed = save({key: value.half() if value.dim() > 1 else value for key, value in weights.items()})
        if len(packed) > ARCHIVE_BYTES:
            print(f"{name} is left out: it has {len(packed) / 2**20:.0f} MiB", flush=True)
            continue
        if size + len(packed) > ARCHIVE_BYTES:
            part, size = part + 1, 0
        size += len(packed)
        out.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(out / f"runs-{part}.zip", "a" if size > len(packed) else "w") as archive:
            for file in RUN_FILES:
                content = packed if file == "model.safetensors" else (run / file).read_bytes()
                archive.writestr(f"{name}/{file}", content, zipfile.ZIP_DEFLATED)


def unpack_runs(files: Sequence[Path], runs: Path, *, tasks: Sequence[str]) -> None:
    """Add packed runs of these tasks to the folder of runs, in single precision again."""
    for file in files:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                task, run, part = name.split("/")
                if task not in tasks or part not in RUN_FILES or run in (".", ".."):
                    raise SystemExit(f"{file} is not a file that --pack wrote: it holds {name}")
                content = archive.read(name)
                if part == "model.safetensors":
                    half = load(content).items()
                    content = save({key: v.float() if v.dtype == torch.half else v for key, v in half})
                replace_file(runs / task / run / part, content)
