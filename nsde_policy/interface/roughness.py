"""Roughness of commands: the root mean square of their second difference, in demonstrated ranges.

It is a number to compare: jerky commands are several times as rough as the demonstrations of the same robot.
Needs numpy only.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from nsde_policy.core.spec import StateSpec, wrap_angle

ROUGH = 2.0
"""Commands that are more times as rough as the demonstrations call for a change."""


def square_second_differences(commands: np.ndarray, spec: StateSpec) -> np.ndarray:
    """Return the squared second differences of consecutive commands, (frames, act_dim) to (frames − 2,).

    Each column is divided by its demonstrated range, and the mean is taken over columns. Angles differ by the
    shorter way. Columns of two values, such as a switch, are left out; without others the result is empty.
    """
    columns = np.setdiff1d(np.arange(spec.act_dim), [column for column, *_ in spec.binary])
    if len(commands) < 3 or not len(columns):
        return np.zeros(0)
    steps = np.diff(commands.astype(np.float64), axis=0)
    angles = [column - spec.obs_dim for column in spec.circular if column >= spec.obs_dim]
    steps[:, angles] = wrap_angle(steps[:, angles])
    spread = np.subtract(spec.high, spec.low)[spec.obs_dim :]
    squares: np.ndarray = np.square(np.diff(steps / spread, axis=0)[:, columns]).mean(1)
    return squares


def measure_roughness(episodes: Iterable[np.ndarray], spec: StateSpec) -> float | None:
    """Return the roughness of the commands of episodes, each (frames, act_dim); None if it is unknown."""
    squares = [square_second_differences(commands, spec) for commands in episodes]
    together = np.concatenate([np.zeros(0), *squares])
    return float(np.sqrt(together.mean())) if len(together) else None


def compare_roughness(roughness: float | None, demonstrated: float | None) -> float | None:
    """Return how many times as rough as the demonstrations commands are; None if either is unknown."""
    return None if roughness is None or not demonstrated else roughness / demonstrated


def describe_roughness(ratio: float) -> str:
    """Describe in one line how rough commands are; above `ROUGH` with advice."""
    line = f"commands are {ratio:.1f} × as rough as the demonstrations"
    if ratio <= ROUGH:
        return line
    return (
        f"{line}: sample with less noise (Neural SDE: --sampling diffusion=0, or train with "
        "--model.sampling.diffusion 0), or execute longer chunks (--chunk)"
    )


class RoughnessMeter:
    """Measures the roughness of commands that arrive one per policy period."""

    def __init__(self, spec: StateSpec) -> None:
        self._spec = spec
        self._newest: deque[np.ndarray] = deque(maxlen=3)
        self._period = -1
        self._sum = 0.0
        self._count = 0

    def add(self, period: int, command: np.ndarray) -> None:
        """Add the command of a period; no difference spans a period without one."""
        if period != self._period + 1:
            self._newest.clear()
        self._period = period
        self._newest.append(command)
        squares = square_second_differences(np.stack(self._newest), self._spec)
        self._sum += float(squares.sum())
        self._count += len(squares)

    @property
    def roughness(self) -> float | None:
        """Roughness of all commands so far; None before the third."""
        return float(np.sqrt(self._sum / self._count)) if self._count else None
