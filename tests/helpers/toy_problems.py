"""Small problems with known answers, shared by the tests of several methods."""

import numpy as np
import torch
from torch import nn

from nsde_policy.config import WindowConfig
from nsde_policy.core.batches import Windows
from nsde_policy.core.spec import StateSpec
from nsde_policy.data import Demonstrations
from tests.helpers.rng import make_rng

LINE = StateSpec(
    obs_dim=1, act_dim=1, circular=(), low=(-1.0, -20.0), high=(1.0, 20.0), increment_std=(0.1, 1.0)
)
"""An observation in [-1, 1], an action in [-20, 20]."""

UNIT_LINE = StateSpec(
    obs_dim=1, act_dim=1, circular=(), low=(0.0, -1.0), high=(1.0, 1.0), increment_std=(0.1, 0.1)
)
"""An observation in [0, 1], an action in [-1, 1]."""

WITH_ANGLE = StateSpec(
    obs_dim=2, act_dim=2, circular=(1,), low=(0.0, -9.0, -2.0, 0.0), high=(10.0, 9.0, 2.0, 512.0),
    increment_std=(0.5, 0.1, 0.2, 3.0),
)  # fmt: skip
"""A position and an angle, and two actions of different ranges."""


def make_states(obs: torch.Tensor, history: int, previous: float = 0.0) -> torch.Tensor:
    """Make states (n, history, 2) that repeat each observation (n,), with a constant previous action."""
    row = torch.stack([obs, torch.full_like(obs, previous)], dim=-1)
    return row[:, None].expand(-1, history, -1).clone()


def make_ramps(n: int, config: WindowConfig, slope: float = 3.0) -> Windows:
    """Make windows whose actions grow from 0 by slope · observation per period."""
    obs = 2 * torch.rand(n, generator=make_rng(1)) - 1
    period = torch.arange(config.horizon) - (config.history - 2)
    return Windows(make_states(obs, config.history), (slope * obs[:, None] * period)[..., None])


def make_two_modes(n: int, config: WindowConfig) -> Windows:
    """Make windows whose actions are all 10 or all -10 with equal probability, for any observation."""
    obs = 2 * torch.rand(n, generator=make_rng(1)) - 1
    side = torch.randint(2, (n, 1, 1), generator=make_rng(2)) * 2.0 - 1
    return Windows(make_states(obs, config.history), (10 * side).expand(-1, config.horizon, -1).clone())


def make_random_windows(n: int, history: int) -> Windows:
    """Make windows of `WITH_ANGLE` with random states, whose actions are those of the states."""
    scale = torch.tensor([10.0, 3.0, 4.0, 512.0])
    states = torch.rand(n, history, 4, generator=make_rng(1)) * scale - torch.tensor([0.0, 0.0, 2.0, 0.0])
    return Windows(states, states.flip(1)[..., 2:].clone())


def make_robot_demos(
    episodes: int = 10, length: int = 20, *, obs_dim: int = 4, act_dim: int = 3
) -> Demonstrations:
    """Make demonstrations of a robot other than Push-T: a random walk with one angle, random actions."""
    rng, n = np.random.default_rng(0), episodes * length
    obs = np.cumsum(rng.normal(size=(n, obs_dim)).astype(np.float32) * 0.1, axis=0)
    act = rng.normal(size=(n, act_dim)).astype(np.float32)
    return Demonstrations(obs=obs, act=act, episode_ends=np.arange(length, n + 1, length), angles=(2,))


class RecordingNetwork(nn.Module):
    """Network that returns a constant and records its inputs."""

    def __init__(self, outputs: int, value: float) -> None:
        super().__init__()
        self.outputs, self.value = outputs, value
        self.inputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        self.inputs.append(x)
        return x.new_full((*x.shape[:-1], self.outputs), self.value)
