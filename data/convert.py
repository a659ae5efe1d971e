"""Conversion of demonstrations to a zarr store, and demonstrations with episodes left out or shortened."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nsde_policy.errors import ConfigError, DemoError, NsdePolicyError
from nsde_policy.files import publish_complete

from .images import LazyFrames
from .readers.groups import PartedArray
from .readers.registry import load_demonstrations, load_from
from .roles import is_camera
from .source import DerivedSource, Progress, Source, SourceArray, get_short_name
from .types import MIN_STEPS, Numbers
from .zarr_store.store import RECORDING
from .zarr_store.writer import MADE_WITH, DemoWriter, LazyRows


def write_zarr(
    source: Source,
    out: Path,
    *,
    obs_keys: Sequence[str] = ("state",),
    act_key: str = "action",
    rate_hz: float | None = None,
    progress: Progress = iter,
) -> int:
    """Write demonstrations to a zarr store and compare what was written; returns the number of episodes.

    Observations become `state` and actions `action`; all other arrays keep the last part of their name. The
    store appears under its name when it is complete.
    """
    demos = load_from(source, obs_keys=obs_keys, act_key=act_key, rate_hz=rate_hz)
    used = {name for key in (*obs_keys, act_key) for name in source.resolve(key)}
    others = _name_arrays(source, used)
    info = {
        re.sub(r"\W+", "_", name.removeprefix("episode_")): values
        for name, values in source.read_info().items()
        if values.shape == (len(demos),)
    }
    attributes = dict(source.attributes)
    recorded = attributes.pop(MADE_WITH, {})
    made_with = {**(recorded if isinstance(recorded, dict) else {}), "converted": demos.fingerprint}
    for name in (RECORDING, "rate_hz", "sessions"):
        attributes.pop(name, None)
    named = {name: array.columns for name, array in others.items() if array.columns}
    attributes["columns"] = {**named, "state": demos.obs_names, "action": demos.act_names}
    with publish_complete(out) as path:
        with DemoWriter(
            path,
            rate_hz=demos.rate_hz,
            angles=demos.angles,
            act_angles=demos.act_angles,
            provenance={"converted_from": str(source.path), "format": source.format},
            made_with=made_with,
            attributes=attributes,
        ) as writer:
            for k in progress(range(len(demos))):
                first, last = int(demos.starts[k]), int(demos.episode_ends[k])
                extras: dict[str, LazyRows] = {}
                for name, array in others.items():
                    rows = ArraySpan(array, first, last)
                    rows.check_parts(len(rows))
                    extras[name] = LazyFrames(rows, len(rows)) if is_camera(array.shape) else rows
                writer.append(demos[k], extras, {name: values[k] for name, values in info.items()})
        if load_demonstrations(path).fingerprint != demos.fingerprint:
            raise DemoError(f"{out} would not hold the numbers of {source.path}; convert them again")
    return len(demos)


def check_output(path: Path, out: Path) -> None:
    """Raise `NsdePolicyError` if a conversion would be written into the demonstrations that it reads."""
    if path.resolve() in (out.resolve(), *out.resolve().parents):
        raise NsdePolicyError(f"{out} is inside {path}, which is read; choose a path outside of it")


def _name_arrays(source: Source, used: set[str]) -> dict[str, SourceArray]:
    """Open the arrays that are neither observation nor action, under names that a store can have."""
    names = [name for name in source.find_arrays() if name not in used]
    if not names:
        return {}
    _, arrays = source.open_episodes(names)
    arrays_by_name: dict[str, SourceArray] = {}
    for name, array in zip(names, arrays, strict=True):
        short = re.sub(r"\W+", "_", get_short_name(name))
        if short in arrays_by_name or short in ("state", "action") or name.startswith("next."):
            short = re.sub(r"\W+", "_", name)
        arrays_by_name[short] = array
    return arrays_by_name


class EditedSource(DerivedSource):
    """Some episodes of a source, each from a first to one past a last frame of its own."""

    def __init__(self, source: Source, cuts: dict[int, tuple[int, int]]) -> None:
        """Take the episodes that are keys of `cuts`, and of each the frames `start` to `stop`."""
        names, self._episodes = source.find_arrays(), list(cuts)
        ends, arrays = source.open_episodes(names)
        starts = [0, *ends.tolist()]
        spans = [(starts[k] + start, starts[k] + stop) for k, (start, stop) in cuts.items()]
        lengths = [stop - start for start, stop in cuts.values()]
        edited = {
            name: PartedArray(array.name, [ArraySpan(array, *span) for span in spans], lengths)
            for name, array in zip(names, arrays, strict=True)
        }
        super().__init__(source, edited, np.cumsum(lengths))

    def read_info(self) -> dict[str, Numbers]:
        """Return the numbers recorded for the episodes that are left."""
        return {name: values[self._episodes] for name, values in super().read_info().items()}


class ArraySpan(SourceArray):
    """The frames `first` to `last` of an array."""

    def __init__(self, array: SourceArray, first: int, last: int) -> None:
        self.array, self._first = array, first
        self.name, self.dtype = array.name, array.dtype
        self.angles, self.columns = array.angles, array.columns
        self.shape = (last - first, *array.shape[1:])

    def find_faults(self, frames: int, start: int = 0) -> Iterator[str]:
        """Describe missing and damaged parts of the frames `start` to `frames`."""
        return self.array.find_faults(self._first + frames, self._first + start)

    def read(self, start: int, stop: int) -> Numbers:
        """Read the frames `start` to `stop`."""
        return self.array.read(self._first + start, self._first + stop)


def parse_cuts(
    lengths: Sequence[int], drop: Sequence[str], trim: Sequence[str]
) -> dict[int, tuple[int, int]]:
    """Return the frames to keep of each episode to keep, given the frames of all.

    `drop` names episodes such as "3" or "7-9". `trim` names frames to keep, "EPISODE:START:STOP", as in a
    Python slice: "5:20:180", "5:20:", "5::-10".
    """
    cuts = {episode: (0, length) for episode, length in enumerate(lengths)}
    for text in trim:
        match = re.fullmatch(r"(\d+):(-?\d*):(-?\d*)", text)
        if match is None or int(match[1]) not in cuts:
            raise ConfigError(
                f"--trim {text!r:.40}, expected EPISODE:START:STOP such as 5:20:180, with an episode from 0 "
                f"to {len(lengths) - 1}"
            )
        episode = int(match[1])
        start, stop = (int(part) if part.strip("-") else None for part in match.groups()[1:])
        frames = range(lengths[episode])[start:stop]
        if len(frames) < MIN_STEPS:
            raise ConfigError(
                f"--trim {text} leaves {len(frames)} of the {lengths[episode]} frames of episode {episode}, "
                f"expected at least {MIN_STEPS}: use --drop {episode}"
            )
        cuts[episode] = frames.start, frames.stop
    for text in drop:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= low <= high < len(lengths):
            raise ConfigError(
                f"--drop {text!r:.40}, expected episodes from 0 to {len(lengths) - 1}, such as 3 or 7-9"
            )
        for episode in range(low, high + 1):
            cuts.pop(episode, None)
    if not cuts:
        raise ConfigError(f"--drop leaves none of the {len(lengths)} episodes")
    return cuts
