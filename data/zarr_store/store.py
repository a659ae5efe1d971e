"""Replay-buffer stores, `data/<arrays>` and `meta/episode_ends`, opened without trusting them."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nsde_policy.data.types import (
    Floats,
    Ints,
    as_float32,
    check_angles,
    check_ends,
    check_lengths,
)
from nsde_policy.data.zarr_store.arrays import StoredArray, array_names, open_array, read_metadata
from nsde_policy.data.zarr_store.files import open_files
from nsde_policy.errors import (
    ArrayError,
    DamagedStoreError,
    EpisodeError,
)

PUSHT_ANGLES = (4,)
"""Angle columns of Push-T's `state`: agent x, y, block x, y, block angle."""
RECORDING = "nsde_policy_recording"
"""Root attribute of stores written by `DemoWriter`: frames behind the last episode end were not committed."""
MADE_WITH = "made_with"
"""Root attribute that says how all episodes of a recording came about, where they came about in one way."""
MAX_COLUMNS = 4096
"""Widest frame that is loaded into memory; anything wider is an image, and read lazily."""


class Store:
    """An open store; a context manager, because a zip file stays open with it."""

    def __init__(
        self, path: Path, *, episode_ends: str = "episode_ends", accept_omitted_chunks: bool = False
    ) -> None:
        self.path = path
        self.accept_omitted_chunks = accept_omitted_chunks
        self._ends_name = f"meta/{episode_ends}"
        self.files = open_files(path)

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.files.close()

    @property
    def attributes(self) -> dict[str, Any]:
        """What the recording says about itself."""
        if self.zarr_format == 2:
            return read_metadata(self.files, ".zattrs")
        attributes = read_metadata(self.files, "zarr.json").get("attributes", {})
        if not isinstance(attributes, dict):
            raise DamagedStoreError(f"the attributes in zarr.json are {attributes!r}, expected a JSON object")
        return attributes

    @property
    def zarr_format(self) -> int:
        """2 or 3."""
        return 2 if self.files.size(".zgroup") is not None else 3

    def names(self, folder: str) -> list[str]:
        """Paths of all arrays below data or meta."""
        return array_names(self.files, folder)

    def array(self, name: str) -> StoredArray:
        """The array at the path `name`, such as data/state."""
        array = open_array(self.files, name)
        if array is None:
            held = ", ".join(self.names("data") + self.names("meta")) or "none"
            raise ArrayError(f"no array {name!r} in {self.path}; it holds: {held}")
        return array

    def episodes(self, names: Sequence[str]) -> tuple[Ints, list[StoredArray]]:
        """Where episodes end, and the named arrays, after checking that they fit each other.

        A recording of ours may be cut off, or still be growing, behind its last episode end: what is
        there does not count. In any other store it is a mistake.
        """
        ends = self.array(self._ends_name)
        ends.verify(ends.shape[0], accept_omitted=self.accept_omitted_chunks)
        values = ends.read(0, ends.shape[0])
        if not values.size:
            raise EpisodeError(f"{ends.name} is empty: there is no episode to learn from in {self.path}")
        arrays = [self.array(name) for name in names]
        frames = [array.shape[0] for array in arrays]
        if RECORDING in self.attributes and values.dtype.kind in "iu":
            frames = [min(length, int(values.flat[-1])) for length in frames]
        check_lengths(dict(zip(names, frames, strict=True)))
        return check_ends(values, max(frames, default=0)), arrays

    def columns(self, array: StoredArray, frames: int) -> Floats:
        """The first `frames` rows of a low-dimensional array, trailing axes flattened, (frames, columns)."""
        width = math.prod(array.shape[1:])
        if width > MAX_COLUMNS:
            raise ArrayError(
                f"{array.name} has {width} numbers a frame, too many to load; open_images reads it lazily"
            )
        array.verify(frames, accept_omitted=self.accept_omitted_chunks)
        return as_float32(array.read(0, frames).reshape(frames, width), array.name)


def declared_angles(array: StoredArray) -> tuple[int, ...]:
    """Columns that the array's own `angles` attribute calls angles."""
    angles = array.attributes.get("angles", [])
    if not isinstance(angles, list):
        raise EpisodeError(
            f"the attribute 'angles' of {array.name} is {json.dumps(angles)}, expected a list of columns"
        )
    return check_angles(angles, math.prod(array.shape[1:]), array.name)


def find_angles(arrays: Sequence[StoredArray]) -> list[int]:
    """Angle columns of arrays laid side by side."""
    widths = [math.prod(array.shape[1:]) for array in arrays]
    offsets = np.cumsum([0, *widths[:-1]]).tolist()
    return [o + column for o, array in zip(offsets, arrays, strict=True) for column in declared_angles(array)]
