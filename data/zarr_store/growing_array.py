"""An array that grows by whole episodes, as the bytes zarr would store; nothing here touches a disk."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 1 << 20
"""Size of a chunk before packing; the last one is written anew with every episode."""
COMPRESSOR: dict[str, Any] = {"id": "zstd", "level": 3, "checksum": True}
"""Zstandard with a checksum, so that a flipped bit is noticed."""


@dataclass(frozen=True, eq=False)
class GrowingArray:
    """Length and last, unfinished chunk of an array on disk; finished chunks never change again."""

    name: str
    """Its path in the store, such as data/state."""
    length: int
    """Rows so far."""
    tail: npt.NDArray[Any]
    """Rows of the unfinished chunk, (length % chunk_rows, …)."""
    chunk_rows: int
    """Rows of a finished chunk."""
    attributes: dict[str, Any]
    """What the store says about the array."""

    @classmethod
    def empty(cls, name: str, like: npt.NDArray[Any], attributes: dict[str, Any]) -> "GrowingArray":
        """An array without rows that will take rows shaped and typed as those of `like`."""
        chunk_rows = max(1, CHUNK_BYTES // max(1, like[:1].nbytes))
        return cls(name, 0, like[:0].copy(), chunk_rows, attributes)

    def extended(self, rows: npt.NDArray[Any]) -> "GrowingArray":
        """The array with `rows` behind its last."""
        length = self.length + len(rows)
        unfinished = np.concatenate([self.tail, rows])
        tail = unfinished[len(unfinished) - length % self.chunk_rows :].copy()
        return replace(self, length=length, tail=tail)

    def files(self, rows: npt.NDArray[Any]) -> dict[str, bytes]:
        """What to write, in this order, to append `rows`: chunks, then the metadata that counts them in."""
        import zarr
        from zarr.storage import MemoryStore

        held: dict[str, Any] = {}
        first = self.length - len(self.tail)
        array = zarr.create_array(
            MemoryStore(held),
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
        own = [key for key in held if key.startswith(f"{self.name}/")]
        return {key: held[key].to_bytes() for key in sorted(own, key=lambda key: key.endswith(".zarray"))}
