"""Small files that targets attack, and functions to read them: a run, an exported graph and stores."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def make_demos() -> Any:
    """Make three episodes of demonstrations."""
    from nsde_policy.data.types import Demonstrations

    rng = np.random.default_rng(0)
    act = rng.normal(size=(120, 2)).cumsum(0).astype(np.float32)
    obs = np.concatenate([act, rng.normal(size=(120, 3)).astype(np.float32)], axis=1)
    return Demonstrations(obs, act, np.array([40, 80, 120]), rate_hz=10.0)


def train(path: Path, *, steps: int = 20, **options: Any) -> None:
    """Train a small policy, or continue its training."""
    from nsde_policy.config import NetworkConfig, TrainConfig
    from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
    from nsde_policy.run_config import RunConfig
    from nsde_policy.training.run import TrainOptions, train_run

    config = RunConfig(
        model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
        train=TrainConfig(steps=steps, batch_size=16, log_every=5),
    )
    train_run(make_demos(), config, path, seed=0, options=TrainOptions(**options))


def export(folder: Path) -> None:
    """Export the small policy."""
    from nsde_policy.deploy.export import export_policy
    from nsde_policy.inference.policy import Policy

    export_policy(Policy.from_pretrained(folder / "run"), folder / "graph" / "policy.onnx", steps=2, cases=1)


def make_samples(folder: Path) -> None:
    """Write a small run directory, and stores of both formats and as a zip."""
    import zarr

    train(folder / "run")
    demos = make_demos()
    arrays = {"data/state": demos.obs, "data/action": demos.act, "meta/episode_ends": demos.episode_ends}
    for zarr_format in (2, 3):
        group = zarr.open_group(folder / f"v{zarr_format}.zarr", mode="w", zarr_format=zarr_format)
        group.attrs.update({"rate_hz": 10.0, "action_space": {"low": [-99, -99], "high": [99, 99]}})
        for name, values in arrays.items():
            shape = {"shape": values.shape, "chunks": (30, *values.shape[1:])}
            group.create_array(name, dtype=values.dtype, **shape)[...] = values
    shutil.make_archive(str(folder / "store"), "zip", folder / "v2.zarr")


def load_run(folder: Path) -> Arrays:
    """Load a run directory, plan, and open a session with its calibration."""
    from nsde_policy.inference.policy import Policy

    policy = Policy.from_pretrained(folder)
    spec, calibration = policy.spec, policy.calibration
    states = np.tile(0.5 * (np.array(spec.low) + np.array(spec.high)), (spec.history, 1))
    plan = policy.plan_from(states, steps=2, seed=0)
    if plan.actions.shape != (2, spec.act_dim):
        raise AssertionError(f"a plan of shape {plan.actions.shape}")
    with policy.session(**({} if calibration.rate_hz else {"rate_hz": 10.0})) as session:
        command = session.step(np.zeros(spec.obs_dim))
    return {"actions": plan.actions, "command": command, "step": np.array(calibration.step, float)}


def resume_run(folder: Path) -> Arrays:
    """Resume the training of a copy of a run, and load it."""
    copy = folder.with_name("resumed")
    shutil.copytree(folder, copy, symlinks=True, copy_function=_copy_or_link)
    try:
        train(copy, resume=True)
        return load_run(copy)
    finally:
        shutil.rmtree(copy)


def _copy_or_link(source: str, target: str) -> None:
    """Copy a file; link a pipe or a file of gigabytes."""
    if os.path.islink(source) or (os.path.isfile(source) and os.path.getsize(source) < 2**30):
        shutil.copy2(source, target, follow_symlinks=False)
    else:
        os.link(source, target)


def load_graph(folder: Path) -> Arrays:
    """Load an exported graph and plan."""
    from nsde_policy.deploy.runtime import RuntimePolicy

    policy = RuntimePolicy.load(folder / "policy.onnx")
    size = policy.spec.obs_dim + policy.spec.act_dim
    states = np.tile(np.linspace(-1, 1, size), (policy.spec.history, 1))
    return {"actions": policy.plan_from(states, steps=2, seed=0).actions}


def load_store(path: Path) -> Arrays:
    """Load a store, and decode all of it."""
    from nsde_policy.data import load_demonstrations
    from nsde_policy.data.check import check_store

    check_store(path)
    demos = load_demonstrations(path)
    if not len(demos.obs) == len(demos.act) == demos.episode_ends[-1]:
        raise AssertionError(f"arrays of shapes {demos.obs.shape} and {demos.act.shape}")
    return {"obs": demos.obs, "act": demos.act, "ends": demos.episode_ends}
