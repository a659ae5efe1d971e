"""Disturbances of an episode: late plans, noisy observations, a push, and what happens to its cameras."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from nsde_policy.bounds import Fraction, Occluder, PixelShift
from nsde_policy.config import BaseConfig

PUSH_PERIODS = (10, 60)
"""First and last control period (exclusive) at which a push may come."""
OCCLUDER, YELLOW = (96, 96, 96), (240, 200, 40)
"""Colours of what occludes a part of the frame."""
CROSSING = 40
"""Frames in which a moving square crosses the picture."""
STRIPES = 3


@dataclass(frozen=True)
class Condition(BaseConfig):
    """Strength of each disturbance; none by default."""

    latency_steps: Annotated[int, Meta(ge=0, le=100)] = 0
    """Control periods from an observation to the plan made from it."""
    obs_noise: Annotated[float, Meta(ge=0, lt=100)] = 0.0
    """Noise on every observation, in standard deviations of its change over one period."""
    push: Annotated[float, Meta(ge=0, lt=1e6)] = 0.0
    """How far the environment's `push` moves an object at a random moment, in units of the task."""


class Disturbances:
    """Random disturbances of one episode, sampled from its seed alone."""

    def __init__(self, condition: Condition, seed: int, increment_std: np.ndarray) -> None:
        self._noise = condition.obs_noise * increment_std
        self._noise_rng, self._push_rng = (np.random.default_rng([seed, stream]) for stream in (1, 2))
        self._push_period = int(self._push_rng.integers(*PUSH_PERIODS)) if condition.push else None

    def add_noise(self, obs: np.ndarray) -> np.ndarray:
        """Return an observation as the policy sees it."""
        if not self._noise.any():
            return obs
        return obs + self._noise * self._noise_rng.standard_normal(obs.shape)

    def push_rng(self, period: int) -> np.random.Generator | None:
        """Return the generator of the push in this control period, or None if the block is not pushed."""
        return self._push_rng if period == self._push_period else None


@dataclass(frozen=True)
class CameraCondition(BaseConfig):
    """Strength of each disturbance of the cameras; none by default."""

    shift: PixelShift = 0
    """Pixels that the picture moves, in one of eight directions; pixels at the edge are repeated."""
    brightness: Fraction = 0.0
    """Largest relative change of the brightness."""
    noise: Fraction = 0.0
    """Standard deviation of the noise on every pixel of every frame; 1 is the range from black to white."""
    occlusion: Fraction = 0.0
    """Fraction of the picture that is occluded, at a random place."""
    occluder: Occluder = "square"
    """What occludes it: a grey square, which may move, a yellow one, or a grey disc, bar or stripes."""


class CameraDisturbances:
    """Disturbances of the cameras in one episode, sampled from its seed alone."""

    def __init__(self, condition: CameraCondition, seed: int) -> None:
        self._condition, self._rng = condition, np.random.default_rng([seed, 3])
        directions = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y]
        x, y = directions[int(self._rng.integers(len(directions)))]
        self._shift = x * condition.shift, y * condition.shift
        self._gain = 1 + condition.brightness * self._rng.uniform(-1, 1)
        self._place = self._rng.uniform(size=2)
        self._frames = 0

    def change(self, frames: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the frames of one observation as the policy sees them."""
        if self._condition == CameraCondition():
            return dict(frames)
        self._frames += 1
        return {name: self.change_frame(frame, self._frames) for name, frame in frames.items()}

    def change_frame(self, frame: np.ndarray, number: int) -> np.ndarray:
        """Return a frame (height, width, 3) uint8 as the policy sees it; the first one has the number 1."""
        (height, width, _), (x, y) = frame.shape, self._shift
        rows = np.clip(np.arange(height) - y, 0, height - 1)
        columns = np.clip(np.arange(width) - x, 0, width - 1)
        changed = frame[rows][:, columns].astype(np.float32)
        if self._condition.occlusion:
            changed[self._find_occluded(height, width, number)] = (
                YELLOW if self._condition.occluder == "yellow" else OCCLUDER
            )
        changed = changed * self._gain
        if self._condition.noise:
            changed += 255 * self._condition.noise * self._rng.standard_normal(frame.shape, np.float32)
        out: np.ndarray = np.clip(np.rint(changed), 0, 255).astype(np.uint8)
        return out

    def _find_occluded(self, height: int, width: int, number: int) -> np.ndarray:
        """Return which pixels are occluded, (height, width) bool."""
        fraction, kind, (y, x) = self._condition.occlusion, self._condition.occluder, self._place
        if kind == "moving":  # back and forth, faster across than down
            y, x = (abs((start + speed * number / CROSSING) % 2 - 1) for start, speed in ((y, 1), (x, 1.4)))
        side = math.sqrt(fraction * height * width)
        rows, columns = np.arange(height)[:, None], np.arange(width)[None]
        top, left = int(y * (height - side)), int(x * (width - side))
        if kind == "bar":
            start = x * (1 - fraction) * width
            return np.broadcast_to((columns >= start) & (columns < start + fraction * width), (height, width))
        if kind == "stripes":
            return np.broadcast_to((rows * STRIPES / height + y) % 1 < fraction, (height, width))
        if kind == "disc":
            away = np.hypot(rows + 0.5 - (top + side / 2), columns + 0.5 - (left + side / 2))
            disc: np.ndarray = away < math.sqrt(fraction * height * width / math.pi)
            return disc
        bottom, right = int(top + side), int(left + side)
        return (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
