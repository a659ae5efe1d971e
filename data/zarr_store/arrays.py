"""Arrays of a store: detection of missing and truncated chunks, reading of frame ranges.

zarr returns the fill value for a missing chunk or an emptied shard, and Blosc decodes a truncated chunk into
whatever lies behind it in memory. A flipped bit in a chunk stored without a checksum that still decodes
cannot be detected.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nsde_policy.data.types import check_angles
from nsde_policy.data.zarr_store.codecs import BLOSC_HEADER, fits
from nsde_policy.data.zarr_store.files import StoreFiles
from nsde_policy.errors import ArrayError, DamagedStoreError, EpisodeError
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked

OMITTED = 2**64 - 1
"""Offset of an omitted chunk in the index of a shard."""
CHECKSUM_BYTES, MAX_OVERHEAD = 64, 2**16
"""Bytes that checksums add to a chunk, and that compressors add to chunks that cannot be compressed."""
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
    compressor: str | None = None
    """Name of the codec that compresses the chunks."""

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
            raise EpisodeError(
                f"the attribute 'angles' of {self.name} is {json.dumps(angles)}, expected a list of columns"
            )
        return check_angles(angles, self.width, self.name)

    @property
    def rows_per_read(self) -> int:
        """Number of frames that zarr decodes together."""
        return int((self.zarray.shards or self.zarray.chunks)[0])

    def check_size(self, frames: int) -> None:
        """Raise `ArrayError` if the first `frames` frames do not fit into the memory that arrays may take."""
        self._check_bytes(frames * self.width, f"{frames} frames")

    def _check_bytes(self, numbers: int, what: str) -> None:
        size, limit = numbers * self.zarray.dtype.itemsize, get_max_unpacked()
        if size > limit:
            raise ArrayError(
                f"{self.name}: {what} would take {size} bytes, the limit is {limit}; set "
                f"{MAX_UNPACKED_VARIABLE} if the store is what you expect"
            )

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Decode the frames `start` to `stop`, (stop − start, …)."""
        try:
            for key, place in self._iterate_chunks(start, stop):
                self._check_unpacked(key, place)
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
                f"{message}, zarr would read {self.zarray.fill_value} there; restore it, or "
                f"{self.omitted_advice} if its writer omits chunks that hold only this value"
            )

    def find_faults(self, frames: int) -> Iterator[ChunkFault]:
        """Find missing (unless accepted) and damaged chunks of the first `frames` frames."""
        extent = (frames, *self.shape[1:])
        for key, place in self._iterate_chunks(0, frames):
            for fault in self._find_chunk_faults(key, place, extent):
                if not (fault.missing and self.accept_omitted):
                    yield fault

    def _iterate_chunks(self, start: int, stop: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Iterate over key and position of the chunks, or shards, that hold the frames `start` to `stop`."""
        rows, *others = self.zarray.shards or self.zarray.chunks
        counts = [-(-size // step) for size, step in zip(self.shape[1:], others, strict=True)]
        if (chunks := -(-self.shape[0] // rows) * math.prod(counts)) > MAX_CHUNKS:
            raise ArrayError(f"{self.name} has {chunks} chunks, expected at most {MAX_CHUNKS}")
        for row in range(start // rows, -(-stop // rows)):
            for inner in np.ndindex(*counts):
                place = (row, *inner)
                yield f"{self.name}/{self.zarray.metadata.encode_chunk_key(place)}", place

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
        if (index := self._read_index(key, size)) is None:
            yield ChunkFault(f"chunk {key} is truncated: {size} bytes, too few for a shard's index")
            return
        chunks = self.zarray.chunks
        per_shard = tuple(s // c for s, c in zip(self.zarray.shards, chunks, strict=True))
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

    def _read_index(self, key: str, size: int) -> list[tuple[int, int]] | None:
        """Read offset and size of each chunk in a shard; None if the shard is too short for them."""
        sharding = self.zarray.metadata.codecs[0]
        checksum = 4 * any(type(codec).__name__ == "Crc32cCodec" for codec in sharding.index_codecs)
        length = 16 * (math.prod(self.zarray.shards) // math.prod(self.zarray.chunks))
        if size < length + checksum:
            return None
        start = 0 if sharding.index_location.value == "start" else size - length - checksum
        found = np.frombuffer(self.files.read(key, start, length), "<u8").reshape(-1, 2).tolist()
        return [(offset, packed) for offset, packed in found]

    def _check_unpacked(self, key: str, place: tuple[int, ...]) -> None:
        """Raise `DamagedStoreError` if a chunk, or one of a shard, unpacks to more than its metadata says."""
        size = self.files.size(key)
        if size is None:
            return
        parts = [(0, size)]
        if self.zarray.shards:
            parts = [part for part in self._read_index(key, size) or () if part[0] != OMITTED]
        limit = math.prod(self.zarray.chunks) * (16 if self._has_filters else self.zarray.dtype.itemsize)
        limit += CHECKSUM_BYTES
        for start, length in parts:
            if length > limit + limit // 8 + MAX_OVERHEAD or (length > limit and not self.compressor):
                raise DamagedStoreError(f"chunk {key} has {length} bytes, expected at most {limit}")
            header_only = self.compressor in ("blosc", "lz4")
            if self.compressor and not fits(
                self.files.read(key, start, min(length, BLOSC_HEADER.size) if header_only else length),
                self.compressor,
                limit,
            ):
                raise DamagedStoreError(
                    f"chunk {key} is damaged, or unpacks to more than the {limit} bytes of its metadata"
                )

    @property
    def _has_filters(self) -> bool:
        """Whether codecs may store other types of numbers than the array holds."""
        return bool(self.zarray.filters)

    def _find_blosc_faults(self, key: str, start: int, size: int) -> Iterator[ChunkFault]:
        """Compare the size of a chunk with the one in its header, if it is compressed with Blosc."""
        if self.compressor != "blosc":
            return
        header = self.files.read(key, start, min(size, BLOSC_HEADER.size))
        if len(header) < BLOSC_HEADER.size:
            yield ChunkFault(f"chunk {key} is truncated: {size} bytes, less than a Blosc header")
        elif (packed := BLOSC_HEADER.unpack(header)[-1]) != size:
            yield ChunkFault(f"chunk {key} is damaged: {size} bytes, its Blosc header says {packed}")


def format_brief(error: Exception) -> str:
    """Return the first line of a message, at most 120 characters."""
    return (str(error).splitlines() or [""])[0][:120] or type(error).__name__
