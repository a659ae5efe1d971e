"""Summary of demonstrations as text or JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .action_columns import describe_changes, format_matches, match_changes, match_columns
from .angles import find_wrapped_columns
from .oddities import find_oddities
from .readers import open_source
from .readers.registry import load_from
from .roles import find_roles, is_camera, is_colour
from .source import MAX_COLUMNS, Source, SourceArray, read_columns
from .types import Ints

SHOWN_COLUMNS = 8
"""Maximum number of columns that the text lists one by one."""


@dataclass(frozen=True)
class ArraySummary:
    """Summary of one array."""

    name: str
    shape: tuple[int, ...]
    """Shape up to the last episode end, (frames, …)."""
    dtype: str
    minimum: list[float] | None
    """Smallest value of each column; None for images, which are not read."""
    maximum: list[float] | None
    """Largest value of each column; None for images."""
    angles: tuple[int, ...]
    """Columns that the store declares to be angles."""
    looks_like_angles: list[int]
    """Columns that jump by about 2π within an episode and are not declared to be angles."""
    columns: tuple[str, ...] = ()
    """Names of the columns; empty if the store does not say."""
    fault: str | None = None
    """First missing or damaged chunk of images; damage of any other array is an error."""

    def to_text(self) -> str:
        """Format the shape, the range of each column and columns that look like angles, one per line."""
        lines = [f"{self.name}  {self.shape}  {self.dtype}"]
        if self.minimum is None or self.maximum is None:
            return lines[0] + (f"  {self.fault}; `data check` lists all" if self.fault else "  read lazily")
        if len(self.minimum) > SHOWN_COLUMNS:
            lines.append(f"  all columns  {min(self.minimum):.6g} … {max(self.maximum):.6g}")
        else:
            for column, (low, high) in enumerate(zip(self.minimum, self.maximum, strict=True)):
                name = self.columns[column] if self.columns else f"[{column}]"
                angle = "  angle" if column in self.angles else ""
                lines.append(f"  {name}  {low:.6g} … {high:.6g}{angle}")
        hint = "jumps by 2π and looks like an angle: name it for training (--angles)"
        return "\n".join(lines + [f"  [{column}] {hint}" for column in self.looks_like_angles])


@dataclass(frozen=True)
class StoreSummary:
    """Output of `nsde-policy data info`."""

    path: str
    format: str
    """Name and version of the format."""
    episodes: int
    frames: int
    episode_length: tuple[int, float, int]
    """Shortest, median and longest episode in frames."""
    rate_hz: float | None
    """Frames per second; None if the store does not say."""
    arrays: tuple[ArraySummary, ...]
    observations: tuple[str, ...]
    """Arrays that can be observations (`train --obs-keys`); empty if none can."""
    actions: tuple[str, ...]
    """Arrays that can hold the actions (`train --act-key`)."""
    videos: tuple[str, ...]
    """Arrays of colour frames: cameras (`train --images`)."""
    positions: tuple[int, ...] | None
    """Observation column that each action column commands, −1 for none; None without observations or actions.
    Observations are `state`, or all arrays of `observations` without it."""
    changes: tuple[int, ...] | None
    """Observation column that each action column changes by its value in one period, −1 for none."""
    oddities: tuple[str, ...]
    """One line about everything that is often a mistake, see `find_oddities`; and notes of the reader."""
    attributes: dict[str, object]
    """Attributes of the store, such as its provenance."""
    train_flags: str
    """Flags of `train` that name observations and actions, where the format has no convention for them."""

    def to_text(self) -> str:
        """Format the summary as text for a terminal."""
        short, median, long = self.episode_length
        hz = self.rate_hz
        rate = f"{hz:g} Hz, {self.frames / hz:.0f} s" if hz else "rate not recorded (train --rate)"
        text = (
            f"{self.path}: {self.format}\n"
            f"{self.episodes} episodes, {self.frames} frames, {rate}\n"
            f"episode length {short} to {long} frames, median {median:g}"
        )
        text += "".join(f"\n{line}" for line in self._describe_roles())
        attributes = [f"attributes {json.dumps(self.attributes)}"] if self.attributes else []
        return "\n\n".join([text, *(array.to_text() for array in self.arrays), *attributes])

    def _describe_roles(self) -> Iterator[str]:
        """Describe what training would take from the store, one line each."""
        has_numbers = bool(self.observations or self.actions)
        if has_numbers or not self.videos:
            yield f"can be observations: --obs-keys {' '.join(self.observations) or '(none)'}"
            yield f"can be actions: --act-key {' or '.join(self.actions) or '(none)'}"
        if self.videos and has_numbers:
            yield f"can be cameras: --images {' '.join(self.videos)}"
        if self.positions is not None:
            matches = format_matches(self.positions)
            yield f"absolute positions: {matches}" if matches else "no action is an observed position"
        if changes := describe_changes(self.changes or ()):
            yield changes
        yield from self.oddities


def summarize(path: Path | str, *, accept_omitted_chunks: bool = False) -> StoreSummary:
    """Read every low-dimensional array and summarize them; damage raises a `DemoError`."""
    with open_source(path, accept_omitted_chunks=accept_omitted_chunks) as source:
        names = source.find_arrays()
        ends, arrays = source.open_episodes(names)
        lengths = np.diff(ends, prepend=0)
        shapes = {name: array.shape for name, array in zip(names, arrays, strict=True)}
        observations, actions = find_roles(shapes)
        observations = [name for name in observations if name not in source.resolve("action")]
        obs_keys, act_key, train_flags = _choose_keys(source, observations, actions)
        demos = load_from(source, obs_keys=obs_keys, act_key=act_key) if obs_keys and act_key else None
        positions = None if demos is None else match_columns(demos)
        return StoreSummary(
            path=str(path),
            format=source.format,
            episodes=len(ends),
            frames=int(ends[-1]),
            episode_length=(int(lengths.min()), float(np.quantile(lengths, 0.5)), int(lengths.max())),
            rate_hz=source.rate_hz,
            arrays=tuple(_summarize_array(array, ends) for array in arrays),
            observations=tuple(observations),
            actions=tuple(actions),
            videos=tuple(name for name, shape in shapes.items() if is_colour(shape)),
            positions=positions,
            changes=None if demos is None else match_changes(demos, positions or ()),
            oddities=source.notes + (() if demos is None else tuple(find_oddities(demos))),
            attributes=dict(source.attributes),
            train_flags=train_flags,
        )


def _choose_keys(
    source: Source, observations: Sequence[str], actions: Sequence[str]
) -> tuple[tuple[str, ...], str, str]:
    """Return the arrays of observations and actions, and the flags of `train` that name them.

    They are the defaults of `train`, or what can take their place; empty if nothing can.
    """
    names = set(source.find_arrays())
    obs_keys: tuple[str, ...] = ("state",)
    act_key, flags = "action", ""
    if not names.issuperset(source.resolve("state")):
        obs_keys = tuple(name for name in observations if name not in actions[:1])
        flags += f" --obs-keys {' '.join(obs_keys)}"
    if not names.issuperset(source.resolve("action")):
        act_key = actions[0] if actions else ""
        flags += f" --act-key {act_key if len(actions) == 1 else 'ARRAY'}" if actions else ""
    return obs_keys, act_key, flags


def _summarize_array(array: SourceArray, ends: Ints) -> ArraySummary:
    shape, dtype, angles = (int(ends[-1]), *array.shape[1:]), str(array.dtype), array.angles
    if array.width > MAX_COLUMNS or is_camera(array.shape):
        fault = next(array.find_faults(shape[0]), None)
        return ArraySummary(array.name, shape, dtype, None, None, angles, [], fault=fault)
    values = read_columns(array, ends)
    suspects = [column for column in find_wrapped_columns(values, ends) if column not in angles]
    low, high = values.min(0).tolist(), values.max(0).tolist()
    return ArraySummary(array.name, shape, dtype, low, high, angles, suspects, array.columns)
