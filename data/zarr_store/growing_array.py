"""Encoding of an array that grows by whole episodes, without access to the disk."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..types import Numbers

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer

CHUNK_BYTES = 1 << 20
"""Size of an uncompressed chunk; the last one is rewritten with every episode."""
COMPRESSOR: dict[str, Any] = {"id": "zstd", "level": 3, "checksum": True}
"""Zstandard with a checksum, so that flipped bits are detected."""


@dataclass(frozen=True, eq=False)
class GrowingArray:
    """Length and last, incomplete chunk of an array on disk; complete chunks never change again."""

    name: str
    """Path in the store, such as data/state."""
    length: int
    tail: Numbers
    """Rows of the incomplete chunk, (length % chunk_rows, …)."""
    chunk_rows: int
    attributes: dict[str, Any]

    @classmethod
    def empty(cls, name: str, like: Numbers, attributes: dict[str, Any]) -> "GrowingArray":
        """Return an array without rows, for rows of the shape and type of those of `like`."""
        chunk_rows = max(1, CHUNK_BYTES // max(1, like[:1].nbytes))
        return cls(name, 0, like[:0].copy(), chunk_rows, attributes)

    def extend(self, rows: Numbers) -> "GrowingArray":
        """Return the array with `rows` appended."""
        length = self.length + len(rows)
        incomplete = np.concatenate([self.tail, rows])
        tail = incomplete[len(incomplete) - length % self.chunk_rows :].copy()
        return replace(self, length=length, tail=tail)

    def encode(self, rows: Numbers) -> dict[str, bytes]:
        """Return the files that append `rows`, in writing order: chunks, then metadata with the length."""
        import zarr
        from zarr.storage import MemoryStore

        content: dict[str, Buffer] = {}
        first = self.length - len(self.tail)
        array = zarr.create_array(
            MemoryStore(content),
            name=self.name,
            shape=(self.length + len(rows), *self.tail.shape[1:]),
            chunks=(self.chunk_rows, *self.tail.shape[1:]),
            dtype=self.tail.dtype,
            zarr_format=2,
            compressors=COMPRESSOR,
            fill_value=0,
            attributes=self.attributes,
            config={"write_empty_chunks": True},
        )
        array[first:] = np.concatenate([self.tail, rows])
        keys = [key for key in content if key.startswith(f"{self.name}/")]
        return {key: content[key].to_bytes() for key in sorted(keys, key=lambda k: k.endswith(".zarray"))}
