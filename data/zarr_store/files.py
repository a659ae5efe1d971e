"""Raw files of a zarr store, in a directory or a zip file, before zarr interprets them."""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nsde_policy.errors import DemoError, NsdePolicyError
from nsde_policy.files import MAX_JSON_BYTES, parse_json

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrStore

ROOT_KEYS = (".zgroup", "zarr.json")
"""Files that mark the root group of a store, formats 2 and 3."""


class StoreFiles:
    """Read-only access to the files of a store by key, such as data/state/.zarray.

    A context manager, because a zip file stays open with it.

    Raises:
        DemoError: If the path holds anything but a zarr group, or a damaged zip file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise DemoError(f"{path} does not exist; expected a zarr directory or a zip of one")
        self._zip: zipfile.ZipFile | None = None
        self.prefix = ""
        """Folder of the store in a zip file, empty or ending in a slash."""
        if path.is_file():
            with wrap_read_errors(f"{path} is neither a zarr directory nor an undamaged zip of one"):
                self._zip = zipfile.ZipFile(path)
            folders = [name[: name.rfind("/") + 1] for name in self._zip.namelist() if _is_root_key(name)]
            self.prefix = min(folders, key=lambda folder: folder.count("/"), default="")
        if not any(self.size(key) for key in ROOT_KEYS):
            self.close()
            raise DemoError(f"{path} is not a zarr group: it holds neither .zgroup nor zarr.json")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def container(self) -> str:
        """Kind of the container, directory or zip."""
        return "zip" if self._zip else "directory"

    @cached_property
    def zarr_store(self) -> "ZarrStore":
        """The files as zarr reads them, below `prefix`; closed with the last array that reads them."""
        from zarr.storage import LocalStore, ZipStore

        return ZipStore(self.path, mode="r") if self._zip else LocalStore(self.path, read_only=True)

    def close(self) -> None:
        """Close the zip file of the store, if it is one."""
        if self._zip:
            self._zip.close()

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes, None if it does not exist.

        Raises:
            DemoError: If it is a folder, a pipe or a device, which must not be read.
        """
        if self._zip:
            name = self.prefix + key
            return self._zip.getinfo(name).file_size if name in self._zip.NameToInfo else None
        file = self.path / key
        if not os.path.lexists(file):
            return None
        if not file.is_file():
            raise DemoError(f"{file} is not a regular file")
        return file.stat().st_size

    def read(self, key: str, length: int) -> bytes:
        """Read the first `length` bytes of a file that `size` has found."""
        with wrap_read_errors(f"{key} cannot be read"):
            opened = self._zip.open(self.prefix + key) if self._zip else (self.path / key).open("rb")
            with opened as file:
                return file.read(length)

    def read_metadata(self, key: str) -> dict[str, Any]:
        """Read a JSON object; empty if the file does not exist."""
        size = self.size(key)
        if size is None:
            return {}
        if size > MAX_JSON_BYTES:
            raise DemoError(f"{key} has {size} bytes, expected at most {MAX_JSON_BYTES}")
        return parse_json(self.read(key, size), name=key, error=DemoError, allow_nan=True)

    def list_folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in `folder`, sorted."""
        if self._zip:
            start = f"{self.prefix}{folder}/"
            below = [name.removeprefix(start) for name in self._zip.namelist() if name.startswith(start)]
            return sorted({name.partition("/")[0] for name in below if "/" in name})
        path = self.path / folder
        return sorted(child.name for child in path.iterdir() if child.is_dir()) if path.is_dir() else []


@contextmanager
def wrap_read_errors(message: str) -> Iterator[None]:
    """Raise `DemoError` for every other error: zipfile raises many kinds for damaged files."""
    try:
        yield
    except NsdePolicyError:
        raise
    except Exception as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DemoError(f"{message}: {why}") from error


def _is_root_key(name: str) -> bool:
    return name.rpartition("/")[2] in ROOT_KEYS
