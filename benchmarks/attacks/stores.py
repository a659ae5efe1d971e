"""Hand-made hostile stores, run directories and graphs.

Every file of a recording, a run and an export is replaced by everything that a path can lead to: a pipe, a
device, a socket, a folder, links in a circle, sparse gigabytes, hostile JSON. Bombs, doubled metadata and
late NaN are added. An attempt is refused with a typed error, or survived if the file does not matter to the
reader.
"""

import contextlib
import io
import itertools
import json
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attacks._worker import REFUSED, SURVIVED, Attempt, Worker
from attacks.files import make_files
from attacks.result import AttackResult

BOMB_BYTES = 2**30


def run(scale: float, seed: int) -> Iterator[AttackResult]:
    """Replace files one by one, and build hostile stores; every reader sees each of them."""
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        make_recording(Path(folder) / "recording.zarr")
        for target in ("recording.zarr", "run", "graph"):
            files = sorted(
                str(file.relative_to(folder)) for file in (Path(folder) / target).rglob("*") if file.is_file()
            )
            cases = list(itertools.product(files, REPLACEMENTS, READERS[target]))
            chosen = random.Random(seed).sample(cases, max(1, min(len(cases), round(len(cases) * scale))))
            result = AttackResult(f"stores: replaced files of {target}")
            with Worker(prepare_replacement, (folder, target)) as worker:
                for case in chosen:
                    worker.attempt(case, result, ", ".join(case))
            yield result
        result = AttackResult("stores: bombs, doubled metadata, late NaN")
        with Worker(prepare_store, folder) as worker:
            for name, reader in itertools.product(STORES, READERS["recording.zarr"]):
                worker.attempt((name, reader), result, f"{name}, {reader}")
        yield result


def make_recording(path: Path) -> None:
    """Record two episodes."""
    from nsde_policy.data.types import Episode
    from nsde_policy.data.zarr_store.writer import DemoWriter

    rng = np.random.default_rng(0)
    with DemoWriter(path, rate_hz=10) as writer:
        for _ in range(2):
            act = rng.normal(size=(30, 2)).cumsum(0).astype(np.float32)
            writer.append(Episode(act, act), info={"seed": 1})


def _make_socket(path: Path) -> None:
    server, here = socket.socket(socket.AF_UNIX), os.getcwd()
    os.chdir(path.parent)  # the path of a socket has at most 108 bytes
    try:
        server.bind(path.name)
    finally:
        os.chdir(here)
        server.close()


REPLACEMENTS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "socket": _make_socket,
    "folder": Path.mkdir,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nowhere": lambda path: path.symlink_to("nowhere"),
    "link to its folder": lambda path: path.symlink_to("."),
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "sparse 20 GB": lambda path: (path.touch(), os.truncate(path, 20 * 2**30)),
    "sparse 15 MB": lambda path: (path.touch(), os.truncate(path, 15 * 2**20)),
    "deep JSON": lambda path: path.write_text('{"shape": ' + "[" * 5000 + "]" * 5000 + "}"),
    "deeper JSON": lambda path: path.write_text("[" * 10**6),
    "huge number": lambda path: path.write_text('{"shape": [1' + "0" * 400 + '], "step": 1e999}'),
    "wide JSON": lambda path: path.write_text('{"a": [' + "[]," * 10**6 + "1]}"),
    "other JSON": lambda path: path.write_text("[1, 2]"),
    "random bytes": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
    "pickle": lambda path: path.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR."),
}
"""What a file is replaced by."""


def prepare_replacement(argument: tuple[str, str]) -> Attempt:
    """Return the attempt that replaces one file of a copy and lets one reader read it."""
    folder, target = Path(argument[0]), argument[1]
    work = Path(tempfile.mkdtemp(dir=folder))
    for reader in READERS[target].values():  # import everything before memory is measured
        shutil.copytree(folder / target, work / target)
        reader(work / target)
        shutil.rmtree(work / target)

    def attempt(case: tuple[str, str, str]) -> str:
        file, replacement, reader = case
        shutil.copytree(folder / target, work / target)
        try:
            (work / file).unlink()
            REPLACEMENTS[replacement](work / file)
            return READERS[target][reader](work / target)
        finally:
            shutil.rmtree(work / target)

    return attempt


def prepare_store(folder: str) -> Attempt:
    """Return the attempt that builds a hostile store and lets one reader read it."""
    from nsde_policy.data import load_demonstrations

    load_demonstrations(Path(folder) / "recording.zarr")
    work = Path(tempfile.mkdtemp(dir=folder))
    made = {}
    for name, make in STORES.items():  # built before memory is measured
        made[name] = work / name
        shutil.copytree(Path(folder) / "v2.zarr", made[name])
        made[name] = make(made[name]) or made[name]

    def attempt(case: tuple[str, str]) -> str:
        name, reader = case
        answer = READERS["recording.zarr"][reader](made[name])
        return f"it was accepted ({answer})" if answer == SURVIVED and reader in ("load", "check") else answer

    return attempt


def _load(path: Path) -> str:
    from nsde_policy.data import load_demonstrations

    demos = load_demonstrations(path)
    return SURVIVED if np.isfinite(demos.obs).all() and np.isfinite(demos.act).all() else "not finite"


def _load_omitted(path: Path) -> str:
    from nsde_policy.data import load_demonstrations

    return SURVIVED if len(load_demonstrations(path, accept_omitted_chunks=True)) else "no episodes"


def _check(path: Path) -> str:
    from nsde_policy.data.zarr_store.check import check_store

    return REFUSED if check_store(path) else SURVIVED


def _run_command(*args: str) -> str:
    """Run a command; it must succeed, or print one line and exit with code 2."""
    from nsde_policy.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(args)
    lines = errors.getvalue().strip().splitlines()
    if code == 2 and lines:
        return REFUSED
    return SURVIVED if code == 0 else f"exit code {code}: {lines[-1:]}"


def _record(path: Path) -> str:
    from nsde_policy.data.types import Episode
    from nsde_policy.data.zarr_store.writer import DemoWriter

    with DemoWriter(path, rate_hz=10) as writer:
        before = len(writer)
        writer.append(Episode(np.ones((5, 2), np.float32), np.ones((5, 2), np.float32)), info={"seed": 1})
        return SURVIVED if len(writer) == before + 1 else "an episode was lost"


def _load_policy(path: Path) -> str:
    from nsde_policy.inference.policy import Policy

    policy = Policy.from_pretrained(path)
    return SURVIVED if np.isfinite(policy.select_action(np.zeros(3))).all() else "not finite"


def _resume(path: Path) -> str:
    from nsde_policy.data.types import Demonstrations
    from nsde_policy.run_directory import RunDirectory
    from nsde_policy.training.run import train_run

    rng = np.random.default_rng(0)
    act = rng.normal(size=(120, 2)).cumsum(0).astype(np.float32)
    obs = np.concatenate([act, rng.normal(size=(120, 1)).astype(np.float32)], axis=1)
    demos = Demonstrations(obs, act, np.array([40, 80, 120]), rate_hz=10.0)
    config = RunDirectory(path).read_record().config
    train_run(demos, config, path, task="none", seed=0, resume=True)
    return _load_policy(path)


def _load_graph(path: Path) -> str:
    from nsde_policy.deploy.runtime import RuntimePolicy

    policy = RuntimePolicy.load(path / "policy.onnx")
    return SURVIVED if np.isfinite(policy.select_action(np.zeros(3))).all() else "not finite"


READERS: dict[str, dict[str, Callable[[Path], str]]] = {
    "recording.zarr": {
        "load": _load,
        "load omitted": _load_omitted,
        "check": _check,
        "data info": lambda path: _run_command("data", "info", str(path)),
        "set-rate": lambda path: _run_command("data", "set-rate", str(path), "10"),
        "record": _record,
    },
    "run": {
        "load": _load_policy,
        "resume": _resume,
        "curves": lambda path: _read_curves(path),
    },
    "graph": {"load": _load_graph},
}
"""Readers of each target; they answer or raise."""


def _read_curves(path: Path) -> str:
    from nsde_policy.eval.report.collect import read_curves
    from nsde_policy.run_directory import RunDirectory

    read_curves(RunDirectory(path))
    RunDirectory(path).describe_unfinished()
    return SURVIVED


def _edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **changes}))


def _add_bomb(path: Path, codec: str) -> None:
    import numcodecs

    compressor = numcodecs.get_codec({"id": codec})
    _edit(path / "data/state/.zarray", compressor=compressor.get_config(), filters=None)
    parts = 1 if codec in ("zlib", "lz4") else 16  # the others read one stream after the other
    bomb = bytes(compressor.encode(bytes(BOMB_BYTES // parts))) * parts
    for chunk in list((path / "data/state").glob("[0-9]*")):
        chunk.write_bytes(bomb)


def _nest_zstd(path: Path) -> None:
    """Compress a bomb twice, so that its own header is small."""
    from numcodecs import Zstd

    _edit(path / "data/state/.zarray", filters=[{"id": "zstd", "level": 1}])
    for chunk in list((path / "data/state").glob("[0-9]*")):
        chunk.write_bytes(Zstd().encode(Zstd().encode(bytes(BOMB_BYTES))))


def _zip_bomb(path: Path) -> Path:
    _edit(path / "data/state/.zarray", compressor=None, filters=None)
    (path / "data/state/1.0").write_bytes(bytes(BOMB_BYTES))
    return Path(shutil.make_archive(str(path), "zip", path))


def _add_late_nan(path: Path) -> None:
    import zarr

    array = zarr.open_group(path)["data/state"]
    array[119, 2] = np.nan


def _grow(path: Path, rows: int) -> None:
    for name in ("state", "action"):
        file = path / "data" / name / ".zarray"
        _edit(file, shape=[rows, json.loads(file.read_bytes())["shape"][1]])
    import zarr

    zarr.open_group(path)["meta/episode_ends"][2] = rows


STORES: dict[str, Callable[[Path], Path | None]] = {
    **{
        f"bomb of {codec}": lambda path, codec=codec: _add_bomb(path, codec)
        for codec in ("zstd", "gzip", "zlib", "lz4", "bz2", "lzma")
    },
    "bomb in a bomb": _nest_zstd,
    "zip bomb": _zip_bomb,
    "shape of 10^12 frames": lambda path: _grow(path, 10**12),
    "chunks of 10^12 frames": lambda path: _edit(path / "data/state/.zarray", chunks=[10**12, 3]),
    "shape of 10^30 columns": lambda path: _edit(path / "data/state/.zarray", shape=[120, 10**30]),
    "array of both formats": lambda path: _edit_copy(path, "data/state"),
    "group of both formats": lambda path: _edit_copy(path, "data"),
    "root of both formats": lambda path: _edit_copy(path, ""),
    "folders in a circle": lambda path: (path / "data" / "back").symlink_to(".."),
    "late NaN": _add_late_nan,
}
"""Changes of a healthy store, some of which return another path."""


def _edit_copy(path: Path, node: str) -> None:
    """Add the metadata of format 3 to a node of format 2."""
    shutil.copy(path.parent.parent / "v3.zarr" / node / "zarr.json", path / node / "zarr.json")
