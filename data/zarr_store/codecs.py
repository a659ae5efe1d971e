"""How many bytes a chunk unpacks to, found before it is decoded.

A chunk of 33 kB can unpack to gigabytes. Sizes in headers are read where a codec has them and its decoder
relies on them; other chunks are decoded in small steps that are counted and thrown away.
"""

import bz2
import gzip
import io
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nsde_policy.errors import ArrayError

BLOSC_HEADER = struct.Struct("<4B3I")
"""Version, inner version, flags, item size; bytes unpacked, block size, bytes packed."""
_CHECKSUMS = ("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3")
_CONVERSIONS = ("delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits", "shuffle")
SIMPLE_CODECS = frozenset(("bytes", "endian", "transpose", *_CHECKSUMS, *_CONVERSIONS))
"""Codecs whose output has at most the size of the numbers."""
SHARDING = "sharding_indexed"
_ZSTD_MAGIC, _ZSTD_SKIPPED = 0xFD2FB528, range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK = 2**17
"""Most bytes that a block of Zstandard unpacks to."""
_STEP = 2**20
"""Bytes that are decoded at a time to count them."""


def find_compressor(metadata: Mapping[str, Any], name: str) -> str | None:
    """Return the only compressor of an array, such as "zstd"; None if it is not compressed.

    Args:
        metadata: Content of `.zarray` or `zarr.json`, already accepted by zarr.
        name: Path of the array, for error messages.

    Raises:
        ArrayError: If its chunks may unpack to any size: two compressors, nested shards or other codecs.
    """
    names = _list_codecs([*(metadata.get("filters") or ()), metadata.get("compressor")])
    names += _list_codecs(metadata.get("codecs") or ())
    if names[:1] == [SHARDING]:
        inner = metadata["codecs"][0]["configuration"]
        names = names[1:] + _list_codecs(inner["codecs"])
        names += [codec for codec in _list_codecs(inner.get("index_codecs") or ()) if codec in _SIZES]
    others = [codec for codec in names if codec not in SIMPLE_CODECS]
    for codec in others:
        if codec not in _SIZES:
            raise ArrayError(f"{name} is stored with the codec {codec!r:.40}, which is not supported")
    if len(others) > 1:
        raise ArrayError(f"{name} is compressed more than once ({', '.join(others)}), which is not supported")
    return others[0] if others else None


def _list_codecs(codecs: Any) -> list[str]:
    found = [codec.get("id", codec.get("name")) if isinstance(codec, dict) else codec for codec in codecs]
    return [str(codec).removeprefix("numcodecs.") for codec in found if codec is not None]


def fits(content: bytes, compressor: str, limit: int) -> bool:
    """Return whether a chunk unpacks to at most `limit` bytes; False also if it is damaged."""
    try:
        return _SIZES[compressor](content, limit) <= limit
    except (IndexError, struct.error, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError):
        return False


def _measure_blosc(content: bytes, limit: int) -> int:
    return int(BLOSC_HEADER.unpack_from(content)[4])


def _measure_lz4(content: bytes, limit: int) -> int:
    return int.from_bytes(content[:4], "little")


def _measure_zlib(content: bytes, limit: int) -> int:
    decoder, size = zlib.decompressobj(), 0
    while content and size <= limit:
        size += len(decoder.decompress(content, _STEP))
        content = decoder.unconsumed_tail
    return size


def _measure_stream(file: Any, limit: int) -> int:
    size = 0
    with file:
        while size <= limit and (part := file.read(_STEP)):
            size += len(part)
    return size


def _measure_zstd(content: bytes, limit: int) -> int:
    """Add up the frames; one that does not state its size counts with the most that its blocks can hold."""
    size, at, is_stated = 0, 0, True
    while at < len(content):
        (magic,) = struct.unpack_from("<I", content, at)
        if magic in _ZSTD_SKIPPED:
            at += 8 + int.from_bytes(content[at + 4 : at + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            raise ValueError("not a frame of Zstandard")
        stated, at, checksum = _read_zstd_header(content, at + 4)
        at, blocks = _skip_zstd_blocks(content, at)
        at += checksum
        size += blocks * _ZSTD_BLOCK if stated is None else stated
        is_stated = is_stated and stated is not None
    if size <= limit or is_stated:
        return size
    return _decode_zstd(content, limit)


def _read_zstd_header(content: bytes, at: int) -> tuple[int | None, int, int]:
    """Return the stated size of a frame, where its header ends, and the length of its checksum."""
    flags = content[at]
    is_single, dictionary = bool(flags & 0x20), (0, 1, 2, 4)[flags & 3]
    length = (int(is_single), 2, 4, 8)[flags >> 6]
    start = at + 1 + (not is_single) + dictionary
    stated = int.from_bytes(content[start : start + length], "little") + (256 if length == 2 else 0)
    return (stated if length else None), start + length, 4 if flags & 4 else 0


def _skip_zstd_blocks(content: bytes, at: int) -> tuple[int, int]:
    """Return where the blocks of a frame end, and their number."""
    blocks, is_last = 0, False
    while not is_last:
        if at + 3 > len(content):
            raise EOFError
        header = int.from_bytes(content[at : at + 3], "little")
        at += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
        blocks, is_last = blocks + 1, bool(header & 1)
    return at, blocks


def _decode_zstd(content: bytes, limit: int) -> int:
    """Decode into a buffer of `limit` bytes; return one more if it is too small."""
    from numcodecs import Zstd  # type: ignore[import-untyped]

    try:
        Zstd().decode(content, out=np.empty(limit, np.uint8))
    except (RuntimeError, ValueError):
        return limit + 1
    return limit


_SIZES: dict[str, Callable[[bytes, int], int]] = {
    "blosc": _measure_blosc,
    "lz4": _measure_lz4,
    "zstd": _measure_zstd,
    "zlib": _measure_zlib,
    "gzip": lambda content, limit: _measure_stream(gzip.GzipFile(fileobj=io.BytesIO(content)), limit),
    "bz2": lambda content, limit: _measure_stream(bz2.BZ2File(io.BytesIO(content)), limit),
    "lzma": lambda content, limit: _measure_stream(lzma.LZMAFile(io.BytesIO(content)), limit),  # noqa: SIM115
}
"""Functions of a chunk and a limit that return its decoded size, or any number above the limit."""
