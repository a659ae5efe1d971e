"""Sizes and ranges of a state as plain numbers, shared by models, exported graphs and servers."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from nsde_policy.config import BaseConfig
from nsde_policy.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

LARGEST_SIZE = 100_000
"""Most dimensions of a state; larger numbers can only come from a damaged file."""
LARGEST_SIDE = 8192
"""Most rows or columns of a frame."""
STATE_KEY = "observation.state"
"""Name of the low-dimensional part of an observation, as in LeRobot."""
ENVIRONMENT_KEY = "observation.environment_state"
"""Name of a second low-dimensional part."""


@dataclass(frozen=True)
class StateSpec(BaseConfig):
    """A state x = (observation, action): its sizes, its angles and the ranges of its dimensions."""

    obs_dim: int
    """Dimensions of the observation, which come first."""
    act_dim: int
    """Dimensions of the action, which come last."""
    circular: tuple[int, ...]
    """Indices of the dimensions that are angles, radians."""
    low: tuple[float, ...]
    """Smallest value of each dimension in the demonstrations, mapped to -1; unused for angles."""
    high: tuple[float, ...]
    """Largest value of each dimension in the demonstrations, mapped to 1; unused for angles."""
    increment_std: tuple[float, ...]
    """Standard deviation of each dimension's increment over one policy period, state units."""
    image_features: int = 0
    """Dimensions of the observation that are features of images; they are its last ones."""
    binary: tuple[tuple[int, float, float], ...] = ()
    """Action columns that take two values, such as a gripper, each with these values, which commands take."""

    def __post_init__(self) -> None:
        size = self.obs_dim + self.act_dim
        if self.obs_dim < 0 or self.act_dim < 0 or not 1 <= size <= LARGEST_SIZE:
            raise ConfigError(
                f"a state needs 1 to {LARGEST_SIZE} dimensions, got {self.obs_dim} + {self.act_dim}"
            )
        for name in ("low", "high", "increment_std"):
            values = getattr(self, name)
            if len(values) != size or not all(map(math.isfinite, values)):
                raise ConfigError(f"{name} must hold {size} finite numbers, got {values!s:.80}")
        if len(set(self.circular)) < len(self.circular) or not set(self.circular) <= set(range(size)):
            raise ConfigError(
                f"circular must name each dimension once, in 0..{size - 1}, got {self.circular!s:.80}"
            )
        if not 0 <= self.image_features <= self.obs_dim:
            raise ConfigError(
                f"image_features must be from 0 to obs_dim {self.obs_dim}, got {self.image_features}"
            )
        if min(self.increment_std) <= 0:
            raise ConfigError(f"increment_std must be positive, got {self.increment_std!s:.80}")
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ConfigError("every dimension needs low < high")
        if not all(0 <= column < self.act_dim and low < high for column, low, high in self.binary):
            raise ConfigError(f"binary needs action columns, each with low < high, got {self.binary!s:.80}")

    @property
    def dim(self) -> int:
        """Dimensions of the state, d."""
        return self.obs_dim + self.act_dim

    @property
    def plain_dim(self) -> int:
        """Dimensions of the observation that are measured values, not features of images."""
        return self.obs_dim - self.image_features

    def find_lost_features(self, camera: int, cameras: int) -> tuple[slice, list[float]]:
        """Return the columns of one of several cameras, and the features without it: all in mid-range."""
        count = self.image_features // cameras
        columns = slice(self.plain_dim + camera * count, self.plain_dim + (camera + 1) * count)
        ranges = zip(self.low[columns], self.high[columns], strict=True)
        return columns, [(low + high) / 2 for low, high in ranges]


@dataclass(frozen=True)
class CameraSpec(BaseConfig):
    """A camera of a policy: its name, and the shape of the frames that it was trained on."""

    name: str
    """Name in a dictionary of observations, such as `observation.images.top`."""
    height: Annotated[int, Meta(ge=1, le=LARGEST_SIDE)]
    width: Annotated[int, Meta(ge=1, le=LARGEST_SIDE)]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a frame: height, width and the three colours."""
        return self.height, self.width, 3


def wrap_angle(difference: "np.ndarray") -> "np.ndarray":
    """Return differences of angles, radians, the shorter way round, in [-π, π)."""
    wrapped: np.ndarray = (difference + math.pi) % (2 * math.pi) - math.pi
    return wrapped
