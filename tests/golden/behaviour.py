"""What the golden files freeze: commands and public calls, and what they return.

Only what users rely on is called here: the command line, `Policy`, `RuntimePolicy`, `Session`, and the files
of a run directory.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

import nsde_policy
from nsde_policy import Policy
from nsde_policy.cli.main import main
from nsde_policy.deploy.runtime import RuntimePolicy

DATA = Path(__file__).parent / "data"
ASSETS = Path(nsde_policy.__file__).parent / "assets"
DEMOS = DATA / "pusht_demos.zarr.zip"
SHIPPED = {"state": ASSETS / "pusht", "pixels": ASSETS / "pusht_pixels"}
TINY = ("--model.network.width", 24, "--model.network.depth", 2)
TRAIN = ("train", "--task", "pusht", "--device", "cpu", "--select", "none", *TINY)
ENCODER = {
    "train.steps": 3,
    "train.batch-size": 4,
    "size": 48,
    "width": 8,
    "keypoints": 2,
    "anchors": 0,
    "occlusion-steps": 0,
}
UNSTABLE = {"run", "demos", "source", "selection", "versions", "trained_with", "machine", "train_s"}
UNSTABLE |= {"planning_s", "ms_per_action", "latency_ms"}
"""Names in JSON files whose values depend on machine, time or place."""


def run_command(*args: object) -> None:
    """Run `nsde-policy` in this process; it must succeed."""
    assert main([str(arg) for arg in args]) == 0


def train(folder: Path) -> Path:
    """Train a tiny Neural SDE for 200 steps."""
    steps = ("--train.steps", 200, "--train.batch-size", 64, "--validation", 0.02)
    as_recorded = ("--demos.no-align-ends", "--model.noise-factors", *(1.0,) * 5)
    run_command(*TRAIN, *steps, *as_recorded, "--demos", DEMOS, "--out", folder)
    return folder


def train_camera(folder: Path) -> Path:
    """Train a tiny encoder of camera frames, and a policy on its features."""
    steps = ("--train.steps", 20, "--train.batch-size", 32)
    encoder = [part for name, value in ENCODER.items() for part in (f"--encoder.{name}", value)]
    demos = ("--obs", "pixels", "--demos", DATA / "camera_demos.zarr.zip")
    run_command(*TRAIN, *steps, *demos, *encoder, "--out", folder)
    return folder


def read_weights(run: Path) -> dict[str, Tensor]:
    """Return all weights of a run directory, also of its encoder, by file and name."""
    files = sorted(path for path in run.rglob("*.safetensors") if path.name != "training.safetensors")
    return {f"{f.relative_to(run)} {name}": value for f in files for name, value in load_file(f).items()}


def act(run: Path) -> list[Any]:
    """Return ten actions of a policy for each of 20 seeds; from the ninth on, it has planned again."""
    policy = Policy.from_pretrained(run)
    observed = np.load(DATA / "observations.npz")
    actions = []
    for seed, (state, frame) in enumerate(zip(observed["states"], observed["frames"], strict=True)):
        obs: Any = state
        if policy.spec.cameras:
            obs = {"observation.state": state[:2], "observation.images.img": frame}
        policy.reset(seed=seed)
        actions.append([policy.select_action(obs).tolist() for _ in range(10)])
    return actions


def plan(planner: Any) -> list[Any]:
    """Return plans of three steps for ten seeds, actions and σ, from the history of two states."""
    states = np.load(DATA / "observations.npz")["states"]
    full = np.concatenate([states, states[:, :2]], axis=1).astype(np.float32)
    plans = [planner.plan_from(np.stack([row, row - 1]), steps=3, seed=i) for i, row in enumerate(full[:10])]
    return [[plan.actions.tolist(), plan.std.tolist()] for plan in plans]


def export(run: Path, graph: Path) -> RuntimePolicy:
    """Export a run as an ONNX graph with plans of three steps, and load it."""
    run_command("export", run, "--steps", 3, "--cases", 8, "--out", graph)
    return RuntimePolicy.load(graph)


def remove_noise(run: Path, folder: Path) -> Path:
    """Copy a run that then plans without noise: torch and ONNX draw different numbers from a seed."""
    shutil.copytree(run, folder)
    record = json.loads((folder / "config.json").read_text())
    record["config"]["model"]["sampling"]["diffusion"] = 0.0
    (folder / "config.json").write_text(json.dumps(record))
    return folder


def evaluate(file: Path) -> dict[str, float]:
    """Return the mean scores of the shipped policy on 20 seeds, from the JSON of `eval`."""
    run_command("eval", "--episodes", 20, "--workers", 1, "--json", file)
    result = json.loads(file.read_text())
    assert [episode["seed"] for episode in result["episodes"]] == list(range(100_000, 100_020))
    return {name: result[name]["value"] for name in ("mean_max_reward", "success_rate", "final_coverage")}


def score(run: Path, file: Path) -> Any:
    """Return the scores of a run on the recorded episodes that it was not trained on."""
    run_command("score", run, "--demos", DEMOS, "--samples", 9, "--stride", 40, "--json", file)
    result = read_stable(file)
    return {name: result[name] for name in ("episodes", "scored_frames", "action_mean")} | {
        "log_prob": result["log_prob"]
    }


def compare(runs: list[Path], folder: Path, *options: object) -> Path:
    """Compare runs; return the written file."""
    run_command("compare", *runs, *options, "--out", folder)
    return folder / "comparison.json"


def read_stable(file: Path) -> Any:
    """Read a JSON file without what depends on machine, time or place."""
    return _drop_unstable(json.loads(file.read_text()))


def _drop_unstable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_unstable(inner) for name, inner in value.items() if name not in UNSTABLE}
    return [_drop_unstable(inner) for inner in value] if isinstance(value, list) else value
