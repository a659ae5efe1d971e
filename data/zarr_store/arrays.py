"""Arrays of a store: detection of missing and truncated chunks, reading of frame ranges.

zarr returns the fill value for a missing chunk or an emptied shard, and Blosc decodes a truncated chunk into
whatever lies behind it in memory. A flipped bit in a chunk stored without a checksum that still decodes
cannot be detected.
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
from nsde_policy.errors import DamagedStoreError, EpisodeError

BLOSC_HEADER = struct.Struct("<4B3I")
"""Version, inner version, flags, item size; bytes unpacked, block size, bytes packed."""
OMITTED = 2**64 - 1
"""Offset of an omitted chunk in the index of a shard."""


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
            raise EpisodeError(
                f"the attribute 'angles' of {self.name} is {json.dumps(angles)}, expected a list of columns"
            )
        return check_angles(angles, self.width, self.name)

    @property
    def rows_per_read(self) -> int:
        """Number of frames that zarr decodes together."""
        return int((self.zarray.shards or self.zarray.chunks)[0])

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Decode the frames `start` to `stop`, (stop − start, …)."""
        try:
            return np.asarray(self.zarray[start:stop])
        except Exception as error:
            if stop - start > self.rows_per_read:  # name the frames of the first damaged chunk
                for row in range(start, stop, self.rows_per_read):
                    self.read(row, min(row + self.rows_per_read, stop))
            raise DamagedStoreError(
                f"{self.name}: frames {start} to {stop} cannot be decoded ({format_brief(error)}); "
                "restore their chunk from the original"
            ) from error

    def check_chunks(self, frames: int) -> None:
        """Raise `DamagedStoreError` for missing and damaged chunks of the first `frames` frames."""
        for message, missing in self.find_faults(frames):
            if not missing:
                raise DamagedStoreError(f"{message}; restore it from the original")
            raise DamagedStoreError(
                f"{message}, zarr would read {self.zarray.fill_value} there; restore it, or give "
                "--accept-omitted-chunks (accept_omitted_chunks=True) if its writer omits chunks that hold "
                "only this value"
            )

    def find_faults(self, frames: int) -> Iterator[ChunkFault]:
        """Find missing (unless accepted) and damaged chunks of the first `frames` frames."""
        extent = (frames, *self.shape[1:])
        outer = self.zarray.shards or self.zarray.chunks
        for place in _iterate_grid([-(-size // step) for size, step in zip(extent, outer, strict=True)]):
            key = f"{self.name}/{self.zarray.metadata.encode_chunk_key(place)}"
            for fault in self._find_chunk_faults(key, place, extent):
                if not (fault.missing and self.accept_omitted):
                    yield fault

    def _find_chunk_faults(
        self, key: str, place: tuple[int, ...], extent: tuple[int, ...]
    ) -> Iterator[ChunkFault]:
        size = self.files.size(key)
        if size is None:
            yield ChunkFault(f"chunk {key} is missing", missing=True)
        elif size == 0:
            yield ChunkFault(f"chunk {key} is empty (0 bytes)")
        elif self.zarray.shards:
            yield from self._find_shard_faults(key, size, place, extent)
        else:
            yield from self._find_blosc_faults(key, 0, size)

    def _find_shard_faults(
        self, key: str, size: int, place: tuple[int, ...], extent: tuple[int, ...]
    ) -> Iterator[ChunkFault]:
        """Find faults of the chunks in a shard by its index; zarr itself verifies the index's checksum."""
        sharding, chunks = self.zarray.metadata.codecs[0], self.zarray.chunks
        per_shard = tuple(s // c for s, c in zip(self.zarray.shards, chunks, strict=True))
        checksum = 4 * any(type(codec).__name__ == "Crc32cCodec" for codec in sharding.index_codecs)
        length = 16 * math.prod(per_shard)
        if size < length + checksum:
            yield ChunkFault(f"chunk {key} is truncated: {size} bytes, too few for a shard's index")
            return
        start = 0 if sharding.index_location.value == "start" else size - length - checksum
        index = np.frombuffer(self.files.read(key, start, length), "<u8").reshape(-1, 2).tolist()
        for inner, (offset, packed) in zip(np.ndindex(per_shard), index, strict=True):
            origin = (np.array(place) * per_shard + inner) * chunks
            if (origin >= extent).any():
                continue
            if offset == OMITTED:
                yield ChunkFault(f"chunk {key} lacks its inner chunk {inner}", missing=True)
            elif offset + packed > size:
                yield ChunkFault(f"chunk {key} is truncated inside its inner chunk {inner}")
            else:
                yield from self._find_blosc_faults(key, offset, packed)

    def _find_blosc_faults(self, key: str, start: int, size: int) -> Iterator[ChunkFault]:
        """Compare the size of a chunk with the one in its header, if it is compressed with Blosc."""
        compressors = self.zarray.compressors  # of numcodecs in format 2, of zarr in format 3
        if not (compressors and type(compressors[-1]).__name__ in ("Blosc", "BloscCodec")):
            return
        header = self.files.read(key, start, min(size, BLOSC_HEADER.size))
        if len(header) < BLOSC_HEADER.size:
            yield ChunkFault(f"chunk {key} is truncated: {size} bytes, less than a Blosc header")
        elif (packed := BLOSC_HEADER.unpack(header)[-1]) != size:
            yield ChunkFault(f"chunk {key} is damaged: {size} bytes, its Blosc header says {packed}")


def _iterate_grid(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """Iterate over all chunk indices lazily: a damaged shape may have more than fit in memory."""
    if not counts:
        yield ()
        return
    for first in range(counts[0]):
        for rest in _iterate_grid(counts[1:]):
            yield (first, *rest)


def format_brief(error: Exception) -> str:
    """Return the first line of a message, at most 120 characters."""
    return (str(error).splitlines() or [""])[0][:120] or type(error).__name__
