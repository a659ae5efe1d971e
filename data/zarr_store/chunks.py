"""Does every chunk of an array exist, whole?  zarr does not ask.

For a chunk that is missing zarr returns the fill value, for an emptied shard too, and Blosc decodes
a truncated chunk into whatever lies behind it in memory. So ask before anything is decoded.
What nobody can see: a flipped bit in a chunk stored without a checksum that still decodes.
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
ABSENT = 2**64 - 1
"""Offset of an omitted chunk in the index of a shard."""


@dataclass(frozen=True)
class ChunkFault:
    """One chunk that cannot be trusted."""

    key: str
    """Its key in the store."""
    missing: bool
    """True for a chunk that is not there, which may be on purpose; False for a damaged one."""
    finding: str
    """What is wrong, to follow the key in a sentence."""


def chunk_faults(
    files: Files, name: str, array: Any, metadata: dict[str, Any], frames: int
) -> Iterator[ChunkFault]:
    """Every fault among the chunks that hold the first `frames` rows of the zarr array `name`."""
    outer = array.shards or array.chunks
    extent = (frames, *array.shape[1:])
    codecs = _codecs(metadata)
    for place in _grid([-(-size // step) for size, step in zip(extent, outer, strict=True)]):
        key = f"{name}/{array.metadata.encode_chunk_key(place)}"
        size = files.size(key)
        if size is None:
            yield ChunkFault(key, missing=True, finding="is missing")
        elif size == 0:
            yield ChunkFault(key, missing=False, finding="is empty (0 bytes)")
        elif array.shards:
            yield from _shard_faults(files, key, size, codecs[-1], array, place, extent)
        elif codecs and _name(codecs[-1]) == "blosc":
            yield from _blosc_faults(files, key, 0, size)


def _grid(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """Places of all chunks, one after the other: a garbled shape may claim more than fit in memory."""
    if not counts:
        yield ()
        return
    for first in range(counts[0]):
        for rest in _grid(counts[1:]):
            yield (first, *rest)


def _codecs(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """What packs a chunk, in order of packing, formats 2 and 3."""
    if "codecs" in metadata:
        return list(metadata["codecs"])
    return [codec for codec in [*(metadata.get("filters") or []), metadata.get("compressor")] if codec]


def _name(codec: dict[str, Any]) -> str:
    return str(codec.get("id") or codec.get("name"))


def codec_names(metadata: dict[str, Any]) -> list[str]:
    """Names of all codecs of an array, those inside shards included."""
    inner = [c for codec in _codecs(metadata) for c in codec.get("configuration", {}).get("codecs", [])]
    return [_name(codec) for codec in _codecs(metadata) + inner]


def _blosc_faults(files: Files, key: str, start: int, size: int) -> Iterator[ChunkFault]:
    """A Blosc chunk says how long it is: believe it only if it is."""
    header = files.read(key, start, min(size, BLOSC_HEADER.size))
    if len(header) < BLOSC_HEADER.size:
        yield ChunkFault(key, missing=False, finding=f"is truncated: {size} bytes, less than a Blosc header")
        return
    packed = BLOSC_HEADER.unpack(header)[-1]
    if packed != size:
        yield ChunkFault(
            key, missing=False, finding=f"is damaged: {size} bytes, its Blosc header says {packed}"
        )


def _shard_faults(
    files: Files,
    key: str,
    size: int,
    codec: dict[str, Any],
    array: Any,
    place: tuple[int, ...],
    extent: tuple[int, ...],
) -> Iterator[ChunkFault]:
    """Chunks inside one shard, as its index lists them; zarr itself verifies the index's checksum."""
    settings = codec["configuration"]
    per_shard = tuple(s // c for s, c in zip(array.shards, array.chunks, strict=True))
    checksum = 4 * any(_name(c) == "crc32c" for c in settings.get("index_codecs", [{"name": "crc32c"}]))
    length = 16 * math.prod(per_shard)
    if size < length + checksum:
        yield ChunkFault(
            key, missing=False, finding=f"is truncated: {size} bytes, too few for a shard's index"
        )
        return
    start = 0 if settings.get("index_location") == "start" else size - length - checksum
    index = np.frombuffer(files.read(key, start, length), "<u8").reshape(-1, 2).tolist()
    is_blosc = _name(settings["codecs"][-1]) == "blosc"
    for inner, (offset, packed) in zip(np.ndindex(per_shard), index, strict=True):
        origin = ((p * n + i) * c for p, n, i, c in zip(place, per_shard, inner, array.chunks, strict=True))
        if any(o >= limit for o, limit in zip(origin, extent, strict=True)):
            continue
        if offset == ABSENT:
            yield ChunkFault(key, missing=True, finding=f"lacks its inner chunk {inner}")
        elif offset + packed > size:
            yield ChunkFault(key, missing=False, finding=f"is truncated inside its inner chunk {inner}")
        elif is_blosc:
            yield from _blosc_faults(files, key, offset, packed)
