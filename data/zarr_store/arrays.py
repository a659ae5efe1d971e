"""Arrays of a store: detection of missing and truncated chunks, reading of frame ranges.

zarr returns the fill value for a missing chunk, and Blosc decodes a truncated chunk into whatever lies behind
it in memory. Chunks that a shard omits, and flipped bits in a chunk that still decodes, cannot be detected.
"""

import json
import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nsde_policy.errors import DemoError, summarize_error
from nsde_policy.files import get_max_unpacked

from ..source import SourceArray
from ..types import Numbers, check_angles
from .files import StoreFiles

if TYPE_CHECKING:
    import zarr

BLOSC_HEADER = struct.Struct("<4B3I")
"""Version, inner version, flags, item size; bytes unpacked, block size, bytes packed."""
MAX_CHUNKS = 2**20


class StoredArray(SourceArray):
    """An array on disk whose rows are frames, (frames, …); nothing is kept in memory."""

    def __init__(
        self, name: str, zarray: "zarr.Array[Any]", files: StoreFiles, *, accept_omitted: bool
    ) -> None:
        """Wrap an array that zarr opened.

        Args:
            name: Path of the array in the store, such as data/state.
            zarray: The array.
            files: Files of the store, which are checked before zarr reads them.
            accept_omitted: Whether chunks that do not exist hold the fill value. Some writers omit chunks
                that hold nothing else, zarr 3 by default, but a lost chunk looks the same.
        """
        self.name, self.zarray, self._files, self._accept_omitted = name, zarray, files, accept_omitted
        self.shape, self.dtype = tuple(zarray.shape), zarray.dtype
        self.check_size(math.prod(self._unit), "a chunk")
        angles = zarray.attrs.get("angles", [])
        if not isinstance(angles, list):
            raise DemoError(
                f"the attribute 'angles' of {self.name} is {json.dumps(angles)}, expected a list of columns"
            )
        self.angles = check_angles(angles, self.width, self.name)

    @property
    def rows_per_read(self) -> int:
        """Number of frames that zarr decodes together."""
        return self._unit[0]

    @property
    def _unit(self) -> tuple[int, ...]:
        """Shape of what one file holds: a shard, or a chunk."""
        return tuple(self.zarray.shards or self.zarray.chunks)

    def read(self, start: int, stop: int) -> Numbers:
        """Decode the frames `start` to `stop`, (stop − start, …), after checking that their chunks exist."""
        for fault in self.find_faults(stop, start):
            raise DemoError(f"{fault}; restore it from the original")
        try:
            return np.asarray(self.zarray[start:stop])
        except Exception as error:
            if stop - start > self.rows_per_read:  # name the frames of the first damaged chunk
                for row in range(start, stop, self.rows_per_read):
                    self.read(row, min(row + self.rows_per_read, stop))
            raise DemoError(
                f"{self.name}: frames {start} to {stop} cannot be decoded ({summarize_error(error)}); "
                "restore their chunk from the original"
            ) from error

    def find_faults(self, frames: int, start: int = 0) -> Iterator[str]:
        """Describe missing (unless accepted) and damaged chunks of the frames `start` to `frames`."""
        rows, *others = self._unit
        counts = [-(-size // step) for size, step in zip(self.shape[1:], others, strict=True)]
        first, last = start // rows, -(-frames // rows)
        chunks = (last - first) * math.prod(counts)
        if chunks > MAX_CHUNKS:
            raise DemoError(f"{self.name} has {chunks} chunks, expected at most {MAX_CHUNKS}")
        for row, *columns in np.ndindex(max(0, last - first), *counts):
            place = (first + row, *columns)
            fault = self._find_fault(f"{self.name}/{self.zarray.metadata.encode_chunk_key(place)}")
            if fault:
                yield fault

    def _find_fault(self, key: str) -> str | None:
        """Compare the size of a chunk, or shard, with its metadata and its Blosc header."""
        size = self._files.size(key)
        if size is None and self._accept_omitted:
            return None
        if size is None:
            return (
                f"chunk {key} is missing (--accept-omitted-chunks, accept_omitted_chunks=True, reads "
                f"{self.zarray.fill_value} there, for writers that omit such chunks)"
            )
        if size == 0:
            return f"chunk {key} is empty (0 bytes)"
        if size > get_max_unpacked():  # zarr reads all of it
            return f"chunk {key} is damaged: {size} bytes, more than an array may take"
        is_blosc = any("blosc" in type(codec).__name__.lower() for codec in self.zarray.compressors)
        if self.zarray.shards or not is_blosc:
            return None
        header = self._files.read(key, BLOSC_HEADER.size).ljust(BLOSC_HEADER.size, b"\0")
        if (packed := BLOSC_HEADER.unpack(header)[-1]) != size:
            return f"chunk {key} is damaged: {size} bytes, its Blosc header says {packed}"
        return None
