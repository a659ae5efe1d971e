"""Layout of a state and its scaling to and from network units.

A state is an observation followed by an action, x = (o, a), (..., d). Some dimensions may be angles in
radians: the network sees their sine and cosine, and their increments are taken on the circle.
"""

import math

import torch
from torch import Tensor, nn

from nsde_policy.errors import DemoError

from .spec import StateSpec

SMALLEST_STD = 1e-6
"""Smallest standard deviation of an increment, in ranges of its dimension, for dimensions that never move."""

CONSTANT_SPEED = 1e-3
"""Dimensions whose increments vary by less than this fraction of their size (a clock, a conveyor) are scaled
by that size instead of the standard deviation, which is nearly zero."""


def measure_state(
    x: Tensor, x_next: Tensor, *, act_dim: int = 0, circular: tuple[int, ...] = (), image_features: int = 0
) -> StateSpec:
    """Measure ranges and increments from states and those one policy period later, both (n, d).

    The dimensions `circular` are angles in radians. The last `act_dim` dimensions are the action; the last
    `image_features` before them are features of images.
    """
    if x.dim() != 2 or x.shape != x_next.shape or len(x) < 2:
        raise DemoError(f"need two or more pairs of states, got {tuple(x.shape)} and {tuple(x_next.shape)}")
    both = torch.cat([x, x_next]).double()
    if not bool(both.isfinite().all()):
        raise DemoError("states hold values that are not finite; remove those rows first")
    low, high = both.amin(0), both.amax(0)
    # 1, or what float32 can add to a large number
    high = torch.where(high > low, high, low + torch.clamp(SMALLEST_STD * low.abs(), min=1.0))
    increment = wrap_circular(x_next.double() - x.double(), _mask(x.shape[1], circular))
    std, size = increment.std(0), increment.square().mean(0).sqrt()
    std = torch.where(std < CONSTANT_SPEED * size, size, std)
    std = torch.maximum(std, SMALLEST_STD * (high - low))
    return StateSpec(
        obs_dim=x.shape[1] - act_dim,
        act_dim=act_dim,
        circular=tuple(circular),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        increment_std=tuple(std.tolist()),
        image_features=image_features,
    )


class StateLayout(nn.Module):
    """A `StateSpec` as tensors that move with their model between devices."""

    low: Tensor
    high: Tensor
    increment_std: Tensor
    is_circular: Tensor
    linear_index: Tensor
    circular_index: Tensor

    def __init__(self, spec: StateSpec) -> None:
        super().__init__()
        self.spec = spec
        mask = _mask(spec.dim, spec.circular)
        self.register_buffer("low", torch.tensor(spec.low))
        self.register_buffer("high", torch.tensor(spec.high))
        self.register_buffer("increment_std", torch.tensor(spec.increment_std))
        self.register_buffer("is_circular", mask)
        self.register_buffer("linear_index", (~mask).nonzero().squeeze(-1))
        self.register_buffer("circular_index", mask.nonzero().squeeze(-1))

    @property
    def dim(self) -> int:
        """Dimensions of the state, d."""
        return self.spec.dim

    @property
    def feature_dim(self) -> int:
        """Features of one state: one per dimension, two per angle."""
        return self.spec.dim + len(self.spec.circular)

    def features(self, x: Tensor) -> Tensor:
        """Return the network input: positions in [-1, 1], then sines, then cosines; (..., feature_dim)."""
        unit = 2 * (x - self.low) / (self.high - self.low) - 1
        angle = x.index_select(-1, self.circular_index)
        return torch.cat([unit.index_select(-1, self.linear_index), angle.sin(), angle.cos()], dim=-1)

    def increment(self, x: Tensor, x_next: Tensor) -> Tensor:
        """Return x_next − x in state units; for angles the shorter way round, in [-π, π)."""
        return wrap_circular(x_next - x, self.is_circular)

    @property
    def obs_feature_dim(self) -> int:
        """Features of the observation alone."""
        return self.spec.obs_dim + sum(column < self.spec.obs_dim for column in self.spec.circular)

    def obs_features(self, x: Tensor) -> Tensor:
        """Return the network input from the observation alone, (..., obs_feature_dim)."""
        n = self.spec.obs_dim
        of_obs = self.linear_index[: n - (self.obs_feature_dim - n)]
        angle = x.index_select(-1, self.circular_index[: self.obs_feature_dim - n])
        unit = 2 * (x - self.low) / (self.high - self.low) - 1
        return torch.cat([unit.index_select(-1, of_obs), angle.sin(), angle.cos()], dim=-1)

    def to_unit(self, action: Tensor) -> Tensor:
        """Map actions to [-1, 1] over the demonstrated range, (..., act_dim)."""
        low, high = self.low[self.spec.obs_dim :], self.high[self.spec.obs_dim :]
        return 2 * (action - low) / (high - low) - 1

    def from_unit(self, unit: Tensor) -> Tensor:
        """Map actions back from [-1, 1]; the inverse of `to_unit`."""
        low, high = self.low[self.spec.obs_dim :], self.high[self.spec.obs_dim :]
        return low + (unit + 1) / 2 * (high - low)


def _mask(dim: int, circular: tuple[int, ...]) -> Tensor:
    return torch.tensor([i in circular for i in range(dim)])


def wrap_circular(difference: Tensor, is_circular: Tensor) -> Tensor:
    """Return differences of states (..., d), with those of angles the shorter way round, in [-π, π)."""
    wrapped = torch.remainder(difference + math.pi, 2 * math.pi) - math.pi
    return torch.where(is_circular, wrapped, difference)
