"""Toys that tests of several methods share: small worlds of windows whose answers are known."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nsde_policy.config import TrainConfig, WindowConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import Windows
from nsde_policy.data import Demonstrations
from nsde_policy.inference.loading import load_model
from nsde_policy.methods.base import Draws, PolicyModel
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.training.run import train_run

LINE = StateSpec(
    obs_dim=1, act_dim=1, circular=(), low=(-1.0, -20.0), high=(1.0, 20.0), increment_std=(0.1, 1.0)
)
"""An observation in [-1, 1], an action in [-20, 20]."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(n: int, seed: int = 0) -> Draws:
    return Draws([seeded(seed + i) for i in range(n)])


def states_of(obs: torch.Tensor, history: int, previous: float = 0.0) -> torch.Tensor:
    """States (n, history, 2) of a world that stands still at the observations (n,)."""
    row = torch.stack([obs, torch.full_like(obs, previous)], dim=-1)
    return row[:, None].expand(-1, history, -1).clone()


def small_robot() -> Demonstrations:
    """Six demonstrations with 3-D observations (one angle) and 2-D actions."""
    rng = np.random.default_rng(0)
    return Demonstrations(
        obs=np.cumsum(rng.normal(size=(90, 3)).astype(np.float32) * 0.1, axis=0),
        act=rng.normal(size=(90, 2)).astype(np.float32),
        episode_ends=np.arange(15, 91, 15),
        angles=(2,),
    )


def ramps(n: int, config: WindowConfig, slope: float = 3.0) -> Windows:
    """From the action 0, go on by slope · observation per period, for every action of the window."""
    obs = 2 * torch.rand(n, generator=seeded(1)) - 1
    period = torch.arange(config.horizon) - (config.history - 2)
    return Windows(states_of(obs, config.history), (slope * obs[:, None] * period)[..., None])


def two_ways(n: int, config: WindowConfig) -> Windows:
    """Left or right with equal chance, 10 units each, whatever is seen."""
    obs = 2 * torch.rand(n, generator=seeded(1)) - 1
    side = torch.randint(2, (n, 1, 1), generator=seeded(2)) * 2.0 - 1
    return Windows(states_of(obs, config.history), (10 * side).expand(-1, config.horizon, -1).clone())


def robot() -> Demonstrations:
    """Ten demonstrations of a robot: 4-D observations (one angle), 3-D actions."""
    rng = np.random.default_rng(0)
    obs = np.cumsum(rng.normal(size=(200, 4)).astype(np.float32) * 0.1, axis=0)
    act = rng.normal(size=(200, 3)).astype(np.float32)
    return Demonstrations(obs=obs, act=act, episode_ends=np.arange(20, 201, 20), angles=(2,))


def trained_and_loaded(
    config: WindowConfig, path: Path, *, chunk: int, **train: Any
) -> tuple[RunDirectory, PolicyModel[Any]]:
    """A short run on the robot's demonstrations, and the model loaded from it; stopped half way, it resumes.

    Checks that what was saved is what is loaded, and that a run in two parts ends as one in one part.
    """
    settings = TrainConfig(steps=20, batch_size=16, log_every=5)
    run_config = RunConfig(model=config, train=dataclasses.replace(settings, **train), chunk=chunk)
    whole = train_run(robot(), run_config, path / "whole", task="none", seed=3)

    def stop(progress: Any) -> None:
        if progress.step == 10:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        train_run(robot(), run_config, path / "parts", task="none", seed=3, monitor=stop)
    parts = train_run(robot(), run_config, path / "parts", task="none", seed=3, resume=True)
    assert fingerprint(parts.read_weights()) == fingerprint(whole.read_weights())
    record, model = load_model(whole)
    assert record.config == run_config
    assert fingerprint(model.state_dict()) == fingerprint(whole.read_weights())
    assert not model.training
    return whole, model


def robot_states(n: int, history: int) -> torch.Tensor:
    """States of the robot, (n, history, 7)."""
    return torch.randn(n, history, 7, generator=seeded(4))
