"""Folder that zarr writes to, whose files a crash leaves either old or new."""

from typing import TYPE_CHECKING

from zarr.storage import LocalStore

from nsde_policy.files import replace_file

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer


class AtomicStore(LocalStore):
    """Local store that replaces files atomically and flushes them to the disk, one after the other.

    zarr itself writes a file in place before version 3.1 and never flushes it.
    """

    async def set(self, key: str, value: "Buffer") -> None:
        """Replace a file."""
        replace_file(self.root / key, value.to_bytes())
