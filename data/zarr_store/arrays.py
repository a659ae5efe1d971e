"""Arrays of a store: detection of missing and truncated chunks, reading of frame ranges.

zarr returns the fill value for a missing chunk, and Blosc decodes a truncated chunk into whatever lies behind
it in memory. Chunks that a shard omits, and flipped bits in a chunk that still decodes, cannot be detected.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nsde_policy.data.types import check_angles
from nsde_policy.data.zarr_store.files import StoreFiles
from nsde_policy.errors import DemoError
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked

BLOSC_HEADER = struct.Struct("<4B3I")
"""Version, inner version, flags, item size; bytes unpacked, block size, bytes packed."""
NUMBER_BYTES, CHUNK_OVERHEAD = 32, 2**16
"""Most bytes of a number in a chunk, with any filter and the index of a shard, and of anything else in it."""
ACCEPT_OMITTED = "give --accept-omitted-chunks (accept_omitted_chunks=True)"
"""Advice on chunks that do not exist, for commands and functions that can accept them."""
MAX_CHUNKS = 2**20
"""Most chunks of an array."""


class ChunkFault(NamedTuple):
    """A missing or damaged chunk."""

    message: str
    missing: bool = False
    """True if the chunk does not exist, which may be intended; False if it is damaged."""


@dataclass(frozen=True)
class StoredArray:
    """An array on disk whose rows are frames, (frames, …); nothing is kept in memory."""

    name: str
    """Path in the store, such as data/state."""
    zarray: Any
    """The array, opened by zarr."""
    files: StoreFiles
    accept_omitted: bool
    """Whether chunks that do not exist hold the fill value."""
    omitted_advice: str = ACCEPT_OMITTED
    """What to do if a chunk does not exist because its writer omits the fill value."""

    def __post_init__(self) -> None:
        self._check_bytes(math.prod(self.zarray.shards or self.zarray.chunks), "a chunk")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array, (frames, …)."""
        return tuple(self.zarray.shape)

    @property
    def width(self) -> int:
        """Number of columns of the flattened array."""
        return math.prod(self.shape[1:])

    @property
    def angles(self) -> tuple[int, ...]:
        """Columns that the attribute `angles` declares."""
        angles = self.zarray.attrs.get("angles", [])
        if not isinstance(angles, list):
            raise DemoError(
                f"the attribute 'angles' of {self.name} is {json.dumps(angles)}, expected a list of columns"
            )
        return check_angles(angles, self.width, self.name)

    @property
    def rows_per_read(self) -> int:
        """Number of frames that zarr decodes together."""
        return int((self.zarray.shards or self.zarray.chunks)[0])

    def check_size(self, frames: int) -> None:
        """Raise `DemoError` if the first `frames` frames do not fit into the memory that arrays may take."""
        self._check_bytes(frames * self.width, f"{frames} frames")

    def _check_bytes(self, numbers: int, what: str) -> None:
        size, limit = numbers * self.zarray.dtype.itemsize, get_max_unpacked()
        if size > limit:
            raise DemoError(
                f"{self.name}: {what} would take {size} bytes, the limit is {limit}; set "
                f"{MAX_UNPACKED_VARIABLE} if the store is what you expect"
            )

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Decode the frames `start` to `stop`, (stop − start, …)."""
        try:
            return np.asarray(self.zarray[start:stop])
        except Exception as error:
            if stop - start > self.rows_per_read:  # name the frames of the first damaged chunk
                for row in range(start, stop, self.rows_per_read):
                    self.read(row, min(row + self.rows_per_read, stop))
            raise DemoError(
                f"{self.name}: frames {start} to {stop} cannot be decoded ({format_brief(error)}); "
                "restore their chunk from the original"
            ) from error

    def check_chunks(self, frames: int) -> None:
        """Raise `DemoError` for missing and damaged chunks of the first `frames` frames."""
        for message, missing in self.find_faults(frames):
            if not missing:
                raise DemoError(f"{message}; restore it from the original")
            raise DemoError(
                f"{message}, zarr would read {self.zarray.fill_value} there; restore it, or "
                f"{self.omitted_advice} if its writer omits chunks that hold only this value"
            )

    def find_faults(self, frames: int) -> Iterator[ChunkFault]:
        """Find missing (unless accepted) and damaged chunks of the first `frames` frames."""
        for key in self._iterate_chunks(frames):
            fault = self._find_fault(key)
            if fault and not (fault.missing and self.accept_omitted):
                yield fault

    def _iterate_chunks(self, frames: int) -> Iterator[str]:
        """Iterate over the keys of the chunks, or shards, that hold the first `frames` frames."""
        rows, *others = self.zarray.shards or self.zarray.chunks
        counts = [-(-size // step) for size, step in zip(self.shape[1:], others, strict=True)]
        if (chunks := -(-self.shape[0] // rows) * math.prod(counts)) > MAX_CHUNKS:
            raise DemoError(f"{self.name} has {chunks} chunks, expected at most {MAX_CHUNKS}")
        for place in np.ndindex(-(-frames // rows), *counts):
            yield f"{self.name}/{self.zarray.metadata.encode_chunk_key(place)}"

    def _find_fault(self, key: str) -> ChunkFault | None:
        """Compare the size of a chunk, or shard, with its metadata and its Blosc header."""
        size = self.files.size(key)
        most = NUMBER_BYTES * math.prod(self.zarray.shards or self.zarray.chunks) + CHUNK_OVERHEAD
        if size is None:
            return ChunkFault(f"chunk {key} is missing", missing=True)
        if size == 0:
            return ChunkFault(f"chunk {key} is empty (0 bytes)")
        if size > most:
            return ChunkFault(f"chunk {key} has {size} bytes, expected at most {most}")
        if self.zarray.shards or not self._is_blosc:
            return None
        header = self.files.read(key, BLOSC_HEADER.size)
        if len(header) < BLOSC_HEADER.size:
            return ChunkFault(f"chunk {key} is truncated: {size} bytes, less than a Blosc header")
        if (packed := BLOSC_HEADER.unpack(header)[-1]) != size:
            return ChunkFault(f"chunk {key} is damaged: {size} bytes, its Blosc header says {packed}")
        return None

    @property
    def _is_blosc(self) -> bool:
        return any("blosc" in type(codec).__name__.lower() for codec in self.zarray.compressors)


def format_brief(error: Exception) -> str:
    """Return the first line of a message, at most 120 characters."""
    return (str(error).splitlines() or [""])[0][:120] or type(error).__name__
