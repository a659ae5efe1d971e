"""Summary of a store as text or JSON."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.data.angles import TURN
from nsde_policy.data.types import Floats, Ints, check_finite, check_rate, column_names
from nsde_policy.data.zarr_store.arrays import StoredArray
from nsde_policy.data.zarr_store.store import MAX_COLUMNS, Store, declared_angles

SHOWN_COLUMNS = 8
"""Maximum number of columns that the text lists one by one."""


@dataclass(frozen=True)
class ArraySummary:
    """Summary of one array below `data/`."""

    name: str
    shape: tuple[int, ...]
    """Shape up to the last episode end, (frames, …)."""
    dtype: str
    minimum: tuple[float, ...] | None
    """Smallest value of each column; None for images, which are not read."""
    maximum: tuple[float, ...] | None
    """Largest value of each column; None for images."""
    angles: tuple[int, ...]
    """Columns that the store declares to be angles."""
    looks_like_angles: tuple[int, ...]
    """Columns that jump by about 2π within an episode and are not declared to be angles."""


@dataclass(frozen=True)
class StoreSummary:
    """Output of `nsde-policy data info`."""

    path: str
    container: str
    """directory or zip."""
    zarr_format: int
    episodes: int
    frames: int
    episode_length: tuple[int, float, int]
    """Shortest, median and longest episode in frames."""
    rate_hz: float | None
    """Frames per second; None if the store does not say."""
    arrays: tuple[ArraySummary, ...]
    attributes: dict[str, Any]
    """Attributes of the store, such as its provenance."""

    def to_json(self) -> str:
        """Format all fields as a JSON object."""
        return json.dumps(asdict(self), indent=2)

    def to_text(self) -> str:
        """Format the summary as text for a terminal."""
        short, median, long = self.episode_length
        hz = self.rate_hz
        rate = f"{hz:g} Hz, {self.frames / hz:.0f} s" if hz else "rate not recorded"
        lines = [
            f"{self.path}: zarr format {self.zarr_format}, {self.container}",
            f"{self.episodes} episodes, {self.frames} frames, {rate}",
            f"episode length {short} to {long} frames, median {median:g}",
        ]
        for array in self.arrays:
            lines += ["", *_format_array(array)]
        if self.attributes:
            lines += ["", "attributes " + json.dumps(self.attributes)]
        return "\n".join(lines)


def summarize(
    path: Path | str, *, episode_ends: str = "episode_ends", accept_omitted_chunks: bool = False
) -> StoreSummary:
    """Read every low-dimensional array of a store and summarize it; damage raises a `DemoError`."""
    with Store(Path(path), episode_ends=episode_ends, accept_omitted_chunks=accept_omitted_chunks) as store:
        ends, arrays = store.open_episodes(store.find_arrays("data"))
        lengths = np.diff(ends, prepend=0)
        rate_hz = store.attributes.get("rate_hz")
        check_rate(rate_hz)
        return StoreSummary(
            path=str(path),
            container=store.files.kind,
            zarr_format=store.zarr_format,
            episodes=len(ends),
            frames=int(ends[-1]),
            episode_length=(int(lengths.min()), float(np.median(lengths)), int(lengths.max())),
            rate_hz=rate_hz,
            arrays=tuple(_summarize_array(store, array, ends) for array in arrays),
            attributes=store.attributes,
        )


def find_wrapped_columns(values: Floats, ends: Ints) -> list[int]:
    """Return the columns that span at most one turn and jump by nearly a whole one within an episode."""
    steps = np.abs(np.delete(np.diff(values, axis=0), ends[:-1] - 1, axis=0))
    jumps = (steps > 0.9 * TURN).any(0)
    within_a_turn = np.ptp(values, axis=0) <= TURN * (1 + 1e-4)
    return [int(column) for column in np.flatnonzero(jumps & within_a_turn)]


def _summarize_array(store: Store, array: StoredArray, ends: Ints) -> ArraySummary:
    frames = int(ends[-1])
    minimum = maximum = None
    looks_like_angles: tuple[int, ...] = ()
    angles = declared_angles(array)
    if math.prod(array.shape[1:]) <= MAX_COLUMNS:
        values = store.read_columns(array, frames)
        check_finite(values, column_names(array.name, values.shape[1]), ends)
        minimum, maximum = tuple(values.min(0).tolist()), tuple(values.max(0).tolist())
        looks_like_angles = tuple(c for c in find_wrapped_columns(values, ends) if c not in angles)
    return ArraySummary(
        name=array.name,
        shape=(frames, *array.shape[1:]),
        dtype=str(array.zarray.dtype),
        minimum=minimum,
        maximum=maximum,
        angles=angles,
        looks_like_angles=looks_like_angles,
    )


def _format_array(array: ArraySummary) -> list[str]:
    lines = [f"{array.name}  {array.shape}  {array.dtype}"]
    if array.minimum is None or array.maximum is None:
        return [lines[0] + "  read lazily"]
    ranges = list(zip(array.minimum, array.maximum, strict=True))
    if len(ranges) > SHOWN_COLUMNS:
        lines.append(f"  all columns  {min(array.minimum):.6g} … {max(array.maximum):.6g}")
    else:
        for column, (low, high) in enumerate(ranges):
            angle = "  angle" if column in array.angles else ""
            lines.append(f"  [{column}]  {low:.6g} … {high:.6g}{angle}")
    for column in array.looks_like_angles:
        lines.append(f"  [{column}] jumps by 2π and looks like an angle: list it in `angles` for training")
    return lines
