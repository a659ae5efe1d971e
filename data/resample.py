"""Demonstrations at another rate, as if the robot had been recorded at that rate.

Positions are interpolated linearly in time, angles and unit quaternions the shorter way round. Changes per
period are summed, so that they add up to the same path. Columns of few values, such as those of a gripper,
and camera frames keep the newest value.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nsde_policy.errors import DemoError

from .action_columns import NO_COLUMN, match_changes, match_columns
from .angles import TURN, find_wrapped_columns, wrap_columns
from .readers.registry import load_from
from .roles import find_keys, is_camera
from .source import MAX_COLUMNS, DerivedSource, Source, SourceArray
from .types import Ints, Numbers, check_rate

TOLERANCE = 1e-6
"""Instants nearer than this to a frame, in frames, are at it: rounding must not pick the one before."""
MOST_VALUES = 16
"""Most values of a column that is held."""
NORM_ERROR = 1e-3
"""Largest deviation of a unit quaternion's norm from 1."""


def resample(
    source: Source,
    rate_hz: float,
    *,
    recorded_hz: float | None = None,
    obs_keys: Sequence[str] = ("state",),
    act_key: str = "action",
    angles: Sequence[int] = (),
) -> Source:
    """Return demonstrations at another rate, lower or higher.

    Args:
        source: The demonstrations.
        rate_hz: New frames per second.
        recorded_hz: Frames per second of the recording; None to use what the files say.
        obs_keys: Arrays that make up an observation.
        act_key: Array that holds the actions.
        angles: Columns of the observation that are angles, in addition to those that the files name.

    Raises:
        DemoError: If the rate of the recording is unknown.
    """
    recorded_hz = recorded_hz or source.rate_hz
    check_rate(rate_hz)
    if recorded_hz is None:
        raise DemoError(
            f"{source.path} does not record its frames per second, so it cannot be resampled", "use --rate"
        )
    if recorded_hz == rate_hz:
        return source
    return ResampledSource(source, recorded_hz, rate_hz, obs_keys, act_key, angles)


class Instants(NamedTuple):
    """Where new frames lie among the recorded ones."""

    positions: npt.NDArray[np.float64]
    """Recorded frame at the instant of each new one, (new frames,); 2.5 is between frames 2 and 3."""
    ends: Ints
    """One past the last recorded frame of the episode, (new frames,)."""
    period: float
    """New period in recorded frames."""


class ColumnRules(NamedTuple):
    """Columns of an array that are not simply interpolated."""

    angles: list[int]
    starts: Numbers
    """Where the turn begins that each angle stays in, 0 or -π; NaN for those that count their turns."""
    held: list[int]
    summed: list[int]
    quaternions: Ints
    """Columns of unit quaternions, (quaternions, 4)."""


class ResampledSource(DerivedSource):
    """A source with frames at other instants of the same episodes; see `resample`."""

    def __init__(
        self,
        source: Source,
        recorded_hz: float,
        rate_hz: float,
        obs_keys: Sequence[str],
        act_key: str,
        angles: Sequence[int],
    ) -> None:
        obs_names, act_names = find_keys(source, obs_keys, act_key)
        ends, arrays = source.open_episodes([*obs_names, *act_names])
        period = recorded_hz / rate_hz
        lengths = np.floor((np.diff(ends, prepend=0) - 1) / period + TOLERANCE).astype(np.int64) + 1
        new_ends = np.cumsum(lengths)
        nth = np.arange(new_ends[-1]) - np.repeat(new_ends - lengths, lengths)
        first = np.repeat(np.concatenate([[0], ends[:-1]]), lengths)
        self._instants = Instants(first + nth * period, np.repeat(ends, lengths), period)
        super().__init__(
            source,
            {name: partial(self._open, name) for name in source.find_arrays()},
            new_ends,
            rate_hz=rate_hz,
        )
        self.attributes["resampled_from_hz"] = recorded_hz
        self._recorded_hz, self._original_ends = recorded_hz, ends
        self._obs_keys, self._act_key = obs_keys, act_key
        self._act = arrays[len(obs_names) :]
        self._angles = _split_columns(angles, arrays[: len(obs_names)])
        self._changes, self._unmatched = self._match_actions()
        if source.act_limits is not None:  # a longer period may hold a larger change
            scale = np.ones(len(source.act_limits[0]))
            scale[self._changes] = period
            low, high = (tuple((scale * limit).tolist()) for limit in source.act_limits)
            self.act_limits = low, high

    def describe(self) -> str:
        """Describe the rates, and which actions were summed or match no observation, in one line."""
        text = f"resampled from {self._recorded_hz:g} to {self.rate_hz:g} Hz"
        if self._changes:
            text += f"; actions {', '.join(map(str, self._changes))} are changes per period, which are summed"
        if self._unmatched:
            unmatched = ", ".join(map(str, self._unmatched))
            text += (
                f"; actions {unmatched} match no observation and are interpolated, which is right for "
                "positions and velocities; multiply scaled changes by their scale first, or the robot moves "
                "at another speed"
            )
        return text

    def _open(self, name: str) -> "ResampledArray":
        _, (array,) = self._source.open_episodes([name])
        is_numeric = array.dtype.kind in "biuf" and array.width <= MAX_COLUMNS and not is_camera(array.shape)
        return ResampledArray(array, self._instants, self._judge(array) if is_numeric else None)

    def _match_actions(self) -> tuple[list[int], list[int]]:
        """Return the action columns that are changes per period, and those that match no observation."""
        demos = load_from(self._source, obs_keys=self._obs_keys, act_key=self._act_key)
        positions = match_columns(demos)
        changes = [
            action for action, match in enumerate(match_changes(demos, positions)) if match != NO_COLUMN
        ]
        matched = {*changes, *_find_held(demos.act, demos.episode_ends)}
        return changes, [a for a, match in enumerate(positions) if match == NO_COLUMN and a not in matched]

    def _judge(self, array: SourceArray) -> ColumnRules:
        """Find the columns of an array that are not simply interpolated."""
        ends = self._original_ends
        values: Numbers = array.read(0, int(ends[-1])).reshape(int(ends[-1]), -1).astype(np.float64)
        summed = _split_columns(self._changes, self._act).get(array.name, [])
        named = {*array.angles, *self._angles.get(array.name, ())}
        held = [column for column in _find_held(values, ends) if column not in {*named, *summed}]
        quaternions = _find_quaternions(values, held)
        held = [column for column in held if column not in quaternions]
        angles = sorted(named | {*find_wrapped_columns(values, ends)} - {*held, *summed})
        low, high = values.min(axis=0)[angles], values.max(axis=0)[angles]
        starts = np.where(low >= 0, 0.0, -np.pi)
        starts[(low < starts - TOLERANCE) | (high > starts + TURN + TOLERANCE)] = np.nan
        return ColumnRules(angles, starts, held, summed, quaternions)


class ResampledArray(SourceArray):
    """An array at other instants; without rules, the newest rows at these instants."""

    def __init__(self, array: SourceArray, instants: Instants, rules: ColumnRules | None) -> None:
        self.array, self._instants, self._rules = array, instants, rules
        self.name, self.angles, self.columns = array.name, array.angles, array.columns
        self.shape = (len(instants.positions), *array.shape[1:])
        is_held = rules is None or len(rules.held) == array.width
        self.dtype = array.dtype if is_held else np.result_type(array.dtype, np.float32)

    def find_faults(self, frames: int, start: int = 0) -> Iterator[str]:
        """Describe missing and damaged parts of the recorded frames that are read."""
        if start >= frames:
            return iter(())
        first = int(self._instants.positions[start])
        return self.array.find_faults(int(self._instants.ends[frames - 1]), first)

    def read(self, start: int, stop: int) -> Numbers:
        """Read the recorded frames around some instants, and resample them."""
        now, ends = self._instants.positions[start:stop], self._instants.ends[start:stop]
        if not len(now):
            return np.empty((0, *self.shape[1:]), self.dtype)
        newest = np.floor(now + TOLERANCE).astype(np.int64)
        until = np.minimum(now + self._instants.period, ends)
        first, frames = int(newest[0]), math.ceil(self._instants.period) + 1
        if self._rules is None:
            frames_then: Numbers = self.array.read(first, int(newest[-1]) + 1)[newest - first]
            return frames_then
        rows = self.array.read(first, min(int(newest[-1]) + frames, int(ends[-1])))
        values = rows.reshape(len(rows), -1).astype(np.float64)
        before, after = values[newest - first], values[np.minimum(newest + 1, ends - 1) - first]
        rotations = self._rules.quaternions
        products = (before[:, rotations] * after[:, rotations]).sum(axis=-1, keepdims=True)
        after[:, rotations] *= np.where(products < 0, -1, 1)  # a quaternion and its negative are equal
        step = wrap_columns(after - before, self._rules.angles)
        resampled = before + np.clip(now - newest, 0, 1)[:, None] * step
        resampled[:, rotations] /= np.linalg.norm(resampled[:, rotations], axis=-1, keepdims=True)
        angles, starts = self._rules.angles, self._rules.starts
        resampled[:, angles] += TURN * (resampled[:, angles] < starts)
        resampled[:, angles] -= TURN * (resampled[:, angles] >= starts + TURN)
        resampled[:, self._rules.held] = before[:, self._rules.held]
        summed = self._rules.summed
        resampled[:, summed] = 0
        for frame in range(frames if summed else 0):
            row = np.minimum(newest + frame, ends - 1)
            overlap = np.minimum(until, newest + frame + 1) - np.maximum(now, newest + frame)
            resampled[:, summed] += np.clip(overlap, 0, None)[:, None] * values[row - first][:, summed]
        rounded: Numbers = resampled.astype(self.dtype).reshape(-1, *self.shape[1:])
        return rounded


def _split_columns(columns: Sequence[int], arrays: Sequence[SourceArray]) -> dict[str, list[int]]:
    """Return columns of arrays side by side as those of each array, by its name."""
    starts = np.cumsum([0, *(array.width for array in arrays)])
    places = [(int(np.searchsorted(starts, column, side="right")) - 1, column) for column in columns]
    return {
        array.name: [column - int(starts[i]) for at, column in places if at == i]
        for i, array in enumerate(arrays)
    }


def _find_held(values: Numbers, ends: Ints) -> list[int]:
    """Return the columns that take two values, or few and seldom change."""
    still = (np.delete(np.diff(values, axis=0), ends[:-1] - 1, axis=0) == 0).mean(axis=0) >= 0.5
    counts = [len(np.unique(column)) for column in values.T]
    return [i for i, count in enumerate(counts) if count <= 2 or (count <= MOST_VALUES and still[i])]


def _find_quaternions(values: Numbers, held: Sequence[int]) -> Ints:
    """Return four columns of norm 1 each, (quaternions, 4), unless all four are held, as flags are."""
    quaternions: list[range] = []
    for first in range(values.shape[1] - 3):
        columns = range(first, first + 4)
        errors = np.abs(np.linalg.norm(values[:, columns], axis=1) - 1)
        is_free = not quaternions or first >= quaternions[-1].stop
        if is_free and errors.max() < NORM_ERROR and not {*columns} <= {*held}:
            quaternions.append(columns)
    return np.array(quaternions, np.int64).reshape(-1, 4)
