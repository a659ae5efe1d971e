"""Demonstrations as frozen, validated, read-only records: one `Episode`, and the whole set.

Frames are rows. Observations and actions of one row belong to the same instant: the action is what
the expert commanded after seeing that observation.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nsde_policy.errors import ArrayError, DemoError, EpisodeError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

MIN_STEPS = 2
"""Fewest frames of an episode: two, to hold one transition."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One demonstration, recorded at a fixed control rate."""

    obs: Floats
    """What the expert saw, (T, obs_dim)."""
    act: Floats
    """What the expert commanded at the same instants, (T, act_dim)."""

    def __post_init__(self) -> None:
        ends = np.array([len(self.obs)])
        for field in ("obs", "act"):
            values = _frames(getattr(self, field), field)
            object.__setattr__(self, field, values)
        check_lengths({"obs": len(self.obs), "act": len(self.act)})
        check_ends(ends, len(self.obs))
        for field in ("obs", "act"):
            values = getattr(self, field)
            check_finite(values, column_names(field, values.shape[1]), ends)

    def __len__(self) -> int:
        return len(self.obs)


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """A set of demonstrations, end to end in two flat arrays; iterating gives `Episode` views."""

    obs: Floats
    """Every observation, (frames, obs_dim)."""
    act: Floats
    """Every action, (frames, act_dim)."""
    episode_ends: Ints
    """One past the last frame of each episode, (episodes,)."""
    angles: tuple[int, ...] = ()
    """Which columns of `obs` are angles in radians."""
    act_angles: tuple[int, ...] = ()
    """Which columns of `act` are angles in radians."""
    rate_hz: float | None = None
    """Frames per second; None where the recording does not say."""
    obs_names: tuple[str, ...] = ()
    """A name for each column of `obs`; by default obs[0], obs[1], …"""
    act_names: tuple[str, ...] = ()
    """A name for each column of `act`; by default act[0], act[1], …"""
    source: str = "memory"
    """Where the demonstrations came from."""

    def __post_init__(self) -> None:
        check_lengths({"obs": len(self.obs), "act": len(self.act)})
        ends = check_ends(np.asarray(self.episode_ends), len(self.obs))
        object.__setattr__(self, "episode_ends", read_only(ends))
        for part, angles in (("obs", "angles"), ("act", "act_angles")):
            values = _frames(getattr(self, part), part)
            width = values.shape[1]
            names = getattr(self, f"{part}_names") or column_names(part, width)
            if len(names) != width:
                raise DemoError(f"{part} has {width} columns, but {len(names)} names were given for them")
            check_finite(values, names, ends)
            object.__setattr__(self, part, values)
            object.__setattr__(self, f"{part}_names", tuple(names))
            object.__setattr__(self, angles, check_angles(getattr(self, angles), width, part))
        check_rate(self.rate_hz)

    @classmethod
    def from_episodes(
        cls,
        episodes: Iterable[Episode],
        *,
        angles: Sequence[int] = (),
        act_angles: Sequence[int] = (),
        rate_hz: float | None = None,
    ) -> "Demonstrations":
        """Lay episodes end to end; they must agree in their widths."""
        kept = list(episodes)
        widths = {(e.obs.shape[1], e.act.shape[1]) for e in kept}
        if len(widths) != 1:
            raise EpisodeError(
                f"episodes must share one (obs_dim, act_dim), got {sorted(widths) or 'no episodes'}"
            )
        return cls(
            obs=np.concatenate([e.obs for e in kept]),
            act=np.concatenate([e.act for e in kept]),
            episode_ends=np.cumsum([len(e) for e in kept]),
            angles=tuple(angles),
            act_angles=tuple(act_angles),
            rate_hz=rate_hz,
        )

    def first(self, n: int) -> "Demonstrations":
        """The first n demonstrations alone."""
        if not 1 <= n <= len(self):
            raise DemoError(f"{self.source} holds {len(self)} demonstrations, the first {n} are asked for")
        end = self.episode_ends[n - 1]
        return replace(self, obs=self.obs[:end], act=self.act[:end], episode_ends=self.episode_ends[:n])

    def __len__(self) -> int:
        return len(self.episode_ends)

    def __getitem__(self, index: int) -> Episode:
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
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
        """Frames of each episode, (episodes,)."""
        return np.diff(self.episode_ends, prepend=0)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of every number and episode end: two sets with one fingerprint train alike."""
        digest = hashlib.sha256(repr((self.obs.shape, self.act.shape, self.angles, self.act_angles)).encode())
        for array in (self.obs, self.act, self.episode_ends):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view of the same memory that refuses to be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def column_names(array: str, width: int) -> tuple[str, ...]:
    """state[0], state[1], …: what messages call the columns of an array."""
    return tuple(f"{array}[{i}]" for i in range(width))


def as_float32(values: npt.NDArray[Any], name: str) -> Floats:
    """The same numbers as float32; refuses what is no real number and what float32 cannot hold."""
    if values.dtype.kind not in "biuf":
        raise ArrayError(f"{name} holds {values.dtype}, expected real numbers")
    with np.errstate(over="ignore"):
        converted = values.astype(np.float32, copy=False)
    overflow = np.isinf(converted) & np.isfinite(values)
    if overflow.any():
        at = np.unravel_index(int(np.argmax(overflow)), values.shape)
        raise EpisodeError(f"{name}: {values[at]:g} at frame {at[0]} is too large for float32; rescale it")
    return converted


def check_rate(rate_hz: float | None) -> None:
    """Refuse a rate that is no positive number of frames per second."""
    is_number = isinstance(rate_hz, int | float) and math.isfinite(rate_hz) and rate_hz > 0
    if rate_hz is not None and not is_number:
        raise DemoError(f"rate_hz must be a positive number of frames per second, got {rate_hz!r}")


def check_lengths(lengths: dict[str, int]) -> None:
    """Refuse arrays that do not have one row per frame each."""
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise EpisodeError(
            f"arrays differ in their number of frames: {counts}; expected one row per frame in each"
        )


def check_ends(ends: npt.NDArray[Any], frames: int) -> Ints:
    """Episode ends as int64, after refusing any that do not cut `frames` frames into whole episodes."""
    if ends.ndim != 1:
        raise EpisodeError(f"episode_ends has shape {ends.shape}, expected one number per episode")
    if ends.size == 0:
        raise EpisodeError("episode_ends is empty: there is no episode to learn from")
    if ends.dtype.kind not in "iu":
        raise EpisodeError(f"episode_ends holds {ends.dtype}, expected whole numbers of frames")
    ends = ends.astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    if (lengths <= 0).any():
        i = int(np.argmax(lengths <= 0))
        before = ends[i - 1] if i else 0
        raise EpisodeError(
            f"episode_ends must increase from above 0, got {ends[i]} after {before} at episode {i}"
        )
    if ends[-1] > frames:
        i = int(np.argmax(ends > frames))
        raise EpisodeError(
            f"episode {i} ends at frame {ends[i]}, which overruns the {frames} frames there are"
        )
    if ends[-1] < frames:
        raise EpisodeError(
            f"episode_ends does not cover all frames: the last episode ends at {ends[-1]} of {frames}; "
            "drop the rest or add its episode"
        )
    if (lengths < MIN_STEPS).any():
        i = int(np.argmax(lengths < MIN_STEPS))
        raise EpisodeError(f"episode {i} is too short: {lengths[i]} frame, a transition needs {MIN_STEPS}")
    return ends


def check_angles(angles: Sequence[int], width: int, name: str) -> tuple[int, ...]:
    """Angle columns as a sorted tuple, after refusing any that `name` does not have."""
    for column in angles:
        if isinstance(column, bool) or not isinstance(column, int | np.integer) or not 0 <= column < width:
            raise EpisodeError(
                f"{name} has columns 0 to {width - 1}, so {column!r} cannot be an angle column"
            )
    if len(set(angles)) != len(angles):
        raise EpisodeError(f"an angle column of {name} is given twice: {list(angles)}")
    return tuple(sorted(int(column) for column in angles))


def _frames(values: npt.NDArray[Any], name: str) -> Floats:
    """Rows of float32, read-only, at least one column wide."""
    values = as_float32(np.asarray(values), name)
    if values.ndim != 2 or values.shape[1] == 0:
        raise EpisodeError(f"{name} has shape {values.shape}, expected (frames, at least one column)")
    return read_only(values)


def check_finite(values: Floats, names: Sequence[str], ends: Ints) -> None:
    """Refuse NaN and infinity, and say where."""
    bad = ~np.isfinite(values)
    if not bad.any():
        return
    frame, column = divmod(int(np.argmax(bad)), bad.shape[1])
    episode = int(np.searchsorted(ends, frame, side="right"))
    step = frame - (ends[episode - 1] if episode else 0)
    raise EpisodeError(
        f"{values[frame, column]} in {names[column]} at frame {frame} (episode {episode}, step {step}), "
        f"{bad.sum()} such in all; repair or drop the episode"
    )
