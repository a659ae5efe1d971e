"""Demonstrations as frozen, validated, read-only records: `Episode` and `Demonstrations`.

Frames are rows. The observation and the action of a row belong to the same instant: the action is what the
expert commanded after seeing that observation.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nsde_policy.bounds import MAX_RATE, MIN_RATE
from nsde_policy.errors import DemoError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]
"""Array whose type is known only when it has been read; real numbers or bools."""
ActionLimits = tuple[tuple[float, ...], tuple[float, ...]]
"""Lower and upper limits, one number per action column."""

MAX_VALUE = 1e18
"""Largest absolute value of a column: float32 cannot hold the squares of much larger ones."""
MIN_STEPS = 2
"""Minimum number of frames of an episode, to hold one transition."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One demonstration, recorded at a fixed control rate."""

    obs: Floats
    """Observations, (T, obs_dim)."""
    act: Floats
    """Actions commanded at the same instants, (T, act_dim)."""

    def __post_init__(self) -> None:
        alone = Demonstrations(self.obs, self.act, np.array(np.shape(self.obs)[:1]))
        object.__setattr__(self, "obs", alone.obs)
        object.__setattr__(self, "act", alone.act)

    def __len__(self) -> int:
        return len(self.obs)


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """A set of demonstrations, concatenated in two flat arrays; iterating gives `Episode` views."""

    obs: Floats
    """All observations, (frames, obs_dim)."""
    act: Floats
    """All actions, (frames, act_dim)."""
    episode_ends: Ints
    """One past the last frame of each episode, (episodes,)."""
    angles: tuple[int, ...] = ()
    """Columns of `obs` that are angles in radians."""
    act_angles: tuple[int, ...] = ()
    """Columns of `act` that are angles in radians."""
    rate_hz: float | None = None
    """Frames per second; None if unknown."""
    act_limits: ActionLimits | None = None
    """Smallest and largest action that the robot or the environment takes, infinite without a limit; None if
    unknown."""
    obs_names: tuple[str, ...] = ()
    """Names of the columns of `obs`; empty if unknown."""
    act_names: tuple[str, ...] = ()
    """Names of the columns of `act`; empty if unknown."""
    source: str = "memory"
    """Path the demonstrations were loaded from."""

    def __post_init__(self) -> None:
        frames = {part: _convert_frames(getattr(self, part), part) for part in ("obs", "act")}
        check_lengths({part: len(values) for part, values in frames.items()})
        ends = check_ends(np.asarray(self.episode_ends), len(frames["obs"]))
        object.__setattr__(self, "episode_ends", _make_read_only(ends))
        for (part, values), angles in zip(frames.items(), ("angles", "act_angles"), strict=True):
            check_finite(values, part, ends)
            object.__setattr__(self, part, values)
            object.__setattr__(self, angles, check_angles(getattr(self, angles), values.shape[1], part))
        check_rate(self.rate_hz)
        if len(self.obs_names) != frames["obs"].shape[1]:
            object.__setattr__(self, "obs_names", ())  # an encoder changed the columns

    def take(self, n: int) -> "Demonstrations":
        """Return the first `n` demonstrations."""
        if not 1 <= n <= len(self):
            raise DemoError(f"cannot take the first {n} demonstrations: {self.source} holds {len(self)}")
        return self.select(range(n))

    def select_columns(self, columns: Sequence[int]) -> "Demonstrations":
        """Return the demonstrations with some columns of the observation, in the given order."""
        width = self.obs.shape[1]
        if not columns or len(set(columns)) < len(columns) or not set(columns) <= set(range(width)):
            raise DemoError(
                f"columns of the observation must be different numbers from 0 to {width - 1}, got "
                f"{list(columns)!s:.80}"
            )
        place = {column: i for i, column in enumerate(columns)}
        angles = tuple(place[column] for column in self.angles if column in place)
        names = tuple(self.obs_names[column] for column in columns) if self.obs_names else ()
        return replace(self, obs=self.obs[:, list(columns)], angles=angles, obs_names=names)

    def append(self, *others: "Demonstrations") -> "Demonstrations":
        """Return these demonstrations followed by others of the same columns."""
        every = (self, *others)
        offsets = np.cumsum([0, *(len(each.obs) for each in every)])
        ends = [each.episode_ends + offset for each, offset in zip(every, offsets, strict=False)]
        obs, act = (np.concatenate([getattr(each, part) for each in every]) for part in ("obs", "act"))
        return replace(self, obs=obs, act=act, episode_ends=np.concatenate(ends))

    def select(self, episodes: Sequence[int]) -> "Demonstrations":
        """Return the demonstrations of these indices, in the given order."""
        rows = self.find_rows(episodes)
        return replace(
            self,
            obs=self.obs[rows],
            act=self.act[rows],
            episode_ends=np.cumsum(self.lengths[list(episodes)]),
        )

    def find_rows(self, episodes: Sequence[int]) -> Ints:
        """Return the indices of all frames of some episodes."""
        spans = [np.arange(self.starts[i], self.episode_ends[i]) for i in episodes]
        return np.concatenate(spans) if spans else np.arange(0)

    def __len__(self) -> int:
        return len(self.episode_ends)

    def __getitem__(self, index: int) -> Episode:
        start, end = self.starts[index], self.episode_ends[index]
        return Episode(obs=self.obs[start:end], act=self.act[start:end])

    def __iter__(self) -> Iterator[Episode]:
        return (self[i] for i in range(len(self)))

    @property
    def starts(self) -> Ints:
        """First frame of each episode, (episodes,)."""
        return np.concatenate([np.zeros(1, np.int64), self.episode_ends[:-1]])

    @property
    def lengths(self) -> Ints:
        """Number of frames of each episode, (episodes,)."""
        return np.diff(self.episode_ends, prepend=0)

    @cached_property
    def episode_fingerprints(self) -> tuple[str, ...]:
        """Short SHA-256 of the numbers of each episode, equal in any store that holds the same episode."""
        return tuple(
            hashlib.sha256(self.obs[start:end].tobytes() + self.act[start:end].tobytes()).hexdigest()[:16]
            for start, end in zip(self.starts, self.episode_ends, strict=True)
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that training depends on: numbers, episode ends and angle columns."""
        digest = hashlib.sha256(repr((self.obs.shape, self.act.shape, self.angles, self.act_angles)).encode())
        for array in (self.obs, self.act, self.episode_ends):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def convert_to_float32(values: Numbers, name: str) -> Floats:
    """Convert real numbers to float32; raise for other types. Numbers beyond its range become infinite."""
    if values.dtype.kind not in "biuf":
        raise DemoError(f"{name} holds {values.dtype}, expected real numbers")
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def check_rate(rate_hz: float | None) -> None:
    """Raise `DemoError` unless the rate is a sensible number or None."""
    is_number = isinstance(rate_hz, int | float) and MIN_RATE <= rate_hz <= MAX_RATE
    if rate_hz is not None and not is_number:
        raise DemoError(
            f"rate_hz must be a positive number of frames per second, {MIN_RATE:g} to {MAX_RATE:g}, got "
            f"{rate_hz!r:.40}"
        )


def is_same_rate(rate_hz: float, other_hz: float) -> bool:
    """Return whether two rates are the same for training: 30 frames per second may be 29.97."""
    return abs(rate_hz / other_hz - 1) <= 0.02


def check_lengths(lengths: dict[str, int]) -> None:
    """Raise `DemoError` unless all arrays have the same number of frames."""
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DemoError(
            f"arrays differ in their number of frames: {counts}; expected one row per frame in each"
        )


def check_ends(ends: Numbers, frames: int) -> Ints:
    """Return episode ends as int64; raise `DemoError` unless they divide `frames` into episodes."""
    if ends.ndim != 1 or ends.size == 0 or ends.dtype.kind not in "iu":
        raise DemoError(
            f"episode_ends is {ends.dtype} {ends.shape}, expected one whole number for at least 1 episode"
        )
    ends = ends.astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    if (lengths < MIN_STEPS).any():
        i = int(np.argmax(lengths < MIN_STEPS))
        before = ends[i - 1] if i else 0
        raise DemoError(
            f"episode {i} is too short: episode_ends goes from {before} to {ends[i]}, a transition needs "
            f"{MIN_STEPS} frames"
        )
    if ends[-1] != frames:
        raise DemoError(
            f"the last episode ends at frame {ends[-1]} of {frames}; episode_ends must divide all frames "
            "into episodes"
        )
    return ends


def check_angles(angles: Sequence[int], width: int, name: str) -> tuple[int, ...]:
    """Return angle columns as a sorted tuple; raise `DemoError` unless they are columns of `name`."""
    for column in angles:
        if isinstance(column, bool) or not isinstance(column, int | np.integer) or not 0 <= column < width:
            raise DemoError(f"{name} has columns 0 to {width - 1}, so {column!r} cannot be an angle column")
    if len(set(angles)) != len(angles):
        raise DemoError(f"an angle column of {name} is given twice: {list(angles)}")
    return tuple(sorted(int(column) for column in angles))


def check_finite(values: Floats, name: str, ends: Ints) -> None:
    """Raise `DemoError` for NaN, infinity and numbers above `MAX_VALUE`."""
    bad = ~(np.abs(values) <= MAX_VALUE)
    if not bad.any():
        return
    frame, column = divmod(int(np.argmax(bad)), bad.shape[1])
    episode = int(np.searchsorted(ends, frame, side="right"))
    step = frame - (ends[episode - 1] if episode else 0)
    raise DemoError(
        f"{values[frame, column]:g} in {name}[{column}] at frame {frame} (episode {episode}, step {step}), "
        f"{bad.sum()} values in total are not within ±{MAX_VALUE:g}; repair or drop the episode"
    )


def _convert_frames(values: Numbers, name: str) -> Floats:
    values = convert_to_float32(np.asarray(values), name)
    if values.ndim != 2 or values.shape[1] == 0:
        raise DemoError(f"{name} has shape {values.shape}, expected (frames, at least one column)")
    return _make_read_only(values)


def _make_read_only(array: Numbers) -> Numbers:
    """Return a read-only view, so that the caller's own array stays writable."""
    view = array.view()
    view.flags.writeable = False
    return view
