"""The files of a store as zarr reads them: the same ones that were checked, through the same guards."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from nsde_policy.data.zarr_store.files import METADATA_FILES, StoreFiles

_CHECKED = (*METADATA_FILES, ".zattrs")
_NO_KEYS: tuple[str, ...] = ()


class ZarrFiles(Store):
    """A read-only store of zarr that takes every byte from `StoreFiles`."""

    supports_writes = supports_deletes = supports_partial_writes = supports_listing = False

    def __init__(self, files: StoreFiles) -> None:
        super().__init__(read_only=True)
        self._files, self._is_open = files, True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrFiles) and other._files is self._files

    __hash__ = None  # type: ignore[assignment]

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Read a file or a part of it; None if it does not exist."""
        size = self._files.size(key)
        if size is None:
            return None
        if key.rpartition("/")[2] in _CHECKED:
            self._files.read_metadata(key)  # raises if zarr should not see it
        start, stop = _resolve_range(byte_range, size)
        content = self._files.read(key, start, max(0, stop - start))
        return (prototype or default_buffer_prototype()).buffer.from_bytes(content)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Read parts of several files."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return whether a file exists."""
        return self._files.size(key) is not None

    async def set(self, key: str, value: Any) -> None:
        """Refuse to write, because the store is read-only."""
        raise NotImplementedError(f"{key}: the store is read-only")

    async def delete(self, key: str) -> None:
        """Refuse to delete, because the store is read-only."""
        raise NotImplementedError(f"{key}: the store is read-only")

    async def list(self) -> AsyncIterator[str]:
        """List nothing: arrays are opened by name."""
        for key in _NO_KEYS:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """List nothing, like `list`."""
        for key in _NO_KEYS:
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List nothing, like `list`."""
        for key in _NO_KEYS:
            yield key


def _resolve_range(byte_range: Any, size: int) -> tuple[int, int]:
    """Return the first byte and one past the last byte that a request of zarr asks for."""
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.start, min(byte_range.end, size)
    if isinstance(byte_range, OffsetByteRequest):
        return byte_range.offset, size
    if isinstance(byte_range, SuffixByteRequest):
        return max(0, size - byte_range.suffix), size
    return 0, size
