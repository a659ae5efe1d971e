"""Write the golden files: `python -m tests.golden.make`.

They record what the package does. Run this only when behaviour changes on purpose, and say in the commit
message which files changed and why. A refactoring leaves them alone.

`data/observations.npz`, `data/pusht_demos.zarr.zip` and `data/camera_demos.zarr.zip` are inputs. They are not
written again.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from nsde_policy import Policy
from tests.golden import behaviour
from tests.golden.behaviour import DATA
from tests.golden.sessions import SCRIPTS, run_script

KEPT = ("*.json", "metrics.jsonl", "model.safetensors", "codes.safetensors", "visibility.safetensors")
"""Files of a run directory that are kept; the state of the optimiser would be large."""


def keep_run(run: Path, target: Path) -> None:
    """Copy a run directory without pictures and without the path of its demonstrations."""
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(file for pattern in KEPT for file in run.rglob(pattern)):
        copy = target / file.relative_to(run)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    record = json.loads((target / "config.json").read_text())
    record["demos"]["source"] = Path(record["demos"]["source"]).name
    (target / "config.json").write_text(json.dumps(record, indent=2))


def write(name: str, value: object) -> None:
    """Write a JSON file, one line per item at the top level."""
    items = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[call-overload]
    lines = ",\n".join(f" {json.dumps(str(key))}: {json.dumps(item)}" for key, item in items)
    (DATA / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


def make_all(folder: Path) -> None:
    """Make every golden file; `folder` is for intermediate files."""
    keep_run(behaviour.train(folder / "run"), DATA / "run")
    keep_run(behaviour.train_camera(folder / "camera_run"), DATA / "camera_run")
    run = DATA / "run"
    runs = {**behaviour.SHIPPED, "camera_run": DATA / "camera_run"}
    write("actions", {name: behaviour.act(path) for name, path in runs.items()})
    graph = behaviour.export(run, DATA / "policy.onnx")
    write("plans", {"torch": behaviour.plan(Policy.from_pretrained(run)), "onnx": behaviour.plan(graph)})
    write("evaluation", behaviour.evaluate(folder / "evaluation.json"))
    write("score", behaviour.score(run, folder / "score.json"))
    options = ("--episodes", 2, "--workers", 1, "--device", "cpu")
    shutil.copy(behaviour.compare([run], folder / "comparison", *options), DATA / "comparison.json")
    policy = Policy.from_pretrained(run)
    write("sessions", {name: run_script(script, policy) for name, script in SCRIPTS.items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        make_all(Path(temporary))
