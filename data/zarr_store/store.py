"""Replay-buffer stores, `data/<arrays>` and `meta/episode_ends`, opened without trusting them."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from nsde_policy.data.types import Floats, Ints, check_angles, check_ends, check_lengths, convert_to_float32
from nsde_policy.data.zarr_store.arrays import StoredArray, find_arrays, open_array, read_metadata
from nsde_policy.data.zarr_store.files import open_files
from nsde_policy.errors import (
    ArrayError,
    DamagedStoreError,
    EpisodeError,
)

RECORDING = "nsde_policy_recording"
"""Root attribute of stores written by `DemoWriter`; frames behind the last episode end are not committed."""
MAX_COLUMNS = 4096
"""Maximum number of columns that are loaded into memory; wider arrays are images and read lazily."""


class Store:
    """An open store; a context manager, because a zip file stays open with it."""

    def __init__(
        self, path: Path, *, episode_ends: str = "episode_ends", accept_omitted_chunks: bool = False
    ) -> None:
        self.path = path
        self.accept_omitted_chunks = accept_omitted_chunks
        self._ends_name = f"meta/{episode_ends}"
        self.files = open_files(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.close()

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the root group."""
        if self.zarr_format == 2:
            return read_metadata(self.files, ".zattrs")
        attributes = read_metadata(self.files, "zarr.json").get("attributes", {})
        if not isinstance(attributes, dict):
            raise DamagedStoreError(f"the attributes in zarr.json are {attributes!r}, expected a JSON object")
        return attributes

    @property
    def zarr_format(self) -> int:
        """Version of the zarr format, 2 or 3."""
        return 2 if self.files.size(".zgroup") is not None else 3

    def find_arrays(self, folder: str) -> list[str]:
        """Return the paths of all arrays below `data` or `meta`."""
        return find_arrays(self.files, folder)

    def open_array(self, name: str) -> StoredArray:
        """Open the array at the path `name`, such as data/state."""
        array = open_array(self.files, name)
        if array is None:
            names = ", ".join(self.find_arrays("data") + self.find_arrays("meta")) or "none"
            raise ArrayError(f"no array {name!r} in {self.path}; it holds: {names}")
        return array

    def open_episodes(self, names: Sequence[str]) -> tuple[Ints, list[StoredArray]]:
        """Read the episode ends and open the named arrays, which must have the same number of frames.

        Frames behind the last episode end are ignored in recordings of `DemoWriter`, which may be growing or
        interrupted, and are an error in any other store.
        """
        ends = self.open_array(self._ends_name)
        ends.check_chunks(ends.shape[0], accept_omitted=self.accept_omitted_chunks)
        values = ends.read(0, ends.shape[0])
        if not values.size:
            raise EpisodeError(f"{ends.name} is empty: there is no episode to learn from in {self.path}")
        arrays = [self.open_array(name) for name in names]
        frames = [array.shape[0] for array in arrays]
        if RECORDING in self.attributes and values.dtype.kind in "iu":
            frames = [min(length, int(values.flat[-1])) for length in frames]
        check_lengths(dict(zip(names, frames, strict=True)))
        return check_ends(values, max(frames, default=0)), arrays

    def read_columns(self, array: StoredArray, frames: int) -> Floats:
        """Read the first `frames` rows of a low-dimensional array, flattened to (frames, columns)."""
        width = math.prod(array.shape[1:])
        if width > MAX_COLUMNS:
            raise ArrayError(
                f"{array.name} has {width} numbers a frame, too many to load; open_images reads it lazily"
            )
        array.check_chunks(frames, accept_omitted=self.accept_omitted_chunks)
        return convert_to_float32(array.read(0, frames).reshape(frames, width), array.name)


def declared_angles(*arrays: StoredArray) -> tuple[int, ...]:
    """Return the columns that the `angles` attributes declare, of one array or of several side by side."""
    columns, offset = [], 0
    for array in arrays:
        angles, width = array.attributes.get("angles", []), math.prod(array.shape[1:])
        if not isinstance(angles, list):
            raise EpisodeError(
                f"the attribute 'angles' of {array.name} is {json.dumps(angles)}, expected a list of columns"
            )
        columns += [offset + column for column in check_angles(angles, width, array.name)]
        offset += width
    return tuple(columns)
