"""Detection of missing and truncated chunks, before zarr decodes them.

zarr returns the fill value for a missing chunk or an emptied shard, and Blosc decodes a truncated chunk into
whatever lies behind it in memory. A flipped bit in a chunk stored without a checksum that still decodes
cannot be detected.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsde_policy.data.zarr_store.files import Files

BLOSC_HEADER = struct.Struct("<4B3I")
"""Version, inner version, flags, item size; bytes unpacked, block size, bytes packed."""
OMITTED = 2**64 - 1
"""Offset of an omitted chunk in the index of a shard."""


@dataclass(frozen=True)
class ChunkFault:
    """A missing or damaged chunk; `str` gives a message."""

    key: str
    """Key in the store."""
    finding: str
    """What is wrong, such as "is empty"."""
    missing: bool = False
    """True if the chunk does not exist, which may be intended; False if it is damaged."""

    def __str__(self) -> str:
        return f"chunk {self.key} {self.finding}"


def find_chunk_faults(
    files: Files, name: str, array: Any, metadata: dict[str, Any], frames: int
) -> Iterator[ChunkFault]:
    """Find the faults of all chunks that hold the first `frames` rows of the zarr array `name`."""
    outer = array.shards or array.chunks
    extent = (frames, *array.shape[1:])
    codecs = _list_codecs(metadata)
    for place in _iterate_grid([-(-size // step) for size, step in zip(extent, outer, strict=True)]):
        key = f"{name}/{array.metadata.encode_chunk_key(place)}"
        size = files.size(key)
        if size is None:
            yield ChunkFault(key, "is missing", missing=True)
        elif size == 0:
            yield ChunkFault(key, "is empty (0 bytes)")
        elif array.shards:
            yield from _find_shard_faults(files, key, size, codecs[-1], array, place, extent)
        elif codecs and _codec_name(codecs[-1]) == "blosc":
            yield from _find_blosc_faults(files, key, 0, size)


def codec_names(metadata: dict[str, Any]) -> list[str]:
    """Return the names of all codecs of an array, including those inside shards."""
    codecs = _list_codecs(metadata)
    inner = [c for codec in codecs for c in codec.get("configuration", {}).get("codecs", [])]
    return [_codec_name(codec) for codec in codecs + inner]


def _codec_name(codec: dict[str, Any]) -> str:
    return str(codec.get("id") or codec.get("name"))


def _list_codecs(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the codecs of formats 2 and 3 in order of encoding."""
    if "codecs" in metadata:
        return list(metadata["codecs"])
    return [codec for codec in [*(metadata.get("filters") or []), metadata.get("compressor")] if codec]


def _iterate_grid(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """Iterate over all chunk indices lazily: a damaged shape may have more than fit in memory."""
    if not counts:
        yield ()
        return
    for first in range(counts[0]):
        for rest in _iterate_grid(counts[1:]):
            yield (first, *rest)


def _find_blosc_faults(files: Files, key: str, start: int, size: int) -> Iterator[ChunkFault]:
    """Compare the size of a Blosc chunk with the one in its header."""
    header = files.read(key, start, min(size, BLOSC_HEADER.size))
    if len(header) < BLOSC_HEADER.size:
        yield ChunkFault(key, f"is truncated: {size} bytes, less than a Blosc header")
    elif (packed := BLOSC_HEADER.unpack(header)[-1]) != size:
        yield ChunkFault(key, f"is damaged: {size} bytes, its Blosc header says {packed}")


def _find_shard_faults(
    files: Files,
    key: str,
    size: int,
    codec: dict[str, Any],
    array: Any,
    place: tuple[int, ...],
    extent: tuple[int, ...],
) -> Iterator[ChunkFault]:
    """Find faults of the chunks in a shard by its index; zarr itself verifies the index's checksum."""
    settings = codec["configuration"]
    per_shard = tuple(s // c for s, c in zip(array.shards, array.chunks, strict=True))
    index_codecs = settings.get("index_codecs", [{"name": "crc32c"}])
    checksum = 4 * any(_codec_name(c) == "crc32c" for c in index_codecs)
    length = 16 * math.prod(per_shard)
    if size < length + checksum:
        yield ChunkFault(key, f"is truncated: {size} bytes, too few for a shard's index")
        return
    start = 0 if settings.get("index_location") == "start" else size - length - checksum
    index = np.frombuffer(files.read(key, start, length), "<u8").reshape(-1, 2).tolist()
    is_blosc = _codec_name(settings["codecs"][-1]) == "blosc"
    for inner, (offset, packed) in zip(np.ndindex(per_shard), index, strict=True):
        origin = ((p * n + i) * c for p, n, i, c in zip(place, per_shard, inner, array.chunks, strict=True))
        if any(o >= limit for o, limit in zip(origin, extent, strict=True)):
            continue
        if offset == OMITTED:
            yield ChunkFault(key, f"lacks its inner chunk {inner}", missing=True)
        elif offset + packed > size:
            yield ChunkFault(key, f"is truncated inside its inner chunk {inner}")
        elif is_blosc:
            yield from _find_blosc_faults(files, key, offset, packed)
