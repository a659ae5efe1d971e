"""Raw files of a zarr store, in a directory or a zip file, before zarr interprets them."""

import os
import stat
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from nsde_policy.errors import DemoError, NsdePolicyError
from nsde_policy.files import MAX_JSON_BYTES, open_regular, parse_json

ROOT_KEYS = (".zgroup", "zarr.json")
"""Files that mark the root group of a store, formats 2 and 3."""


class StoreFiles:
    """Read-only access to the files of a store by key, such as data/state/.zarray.

    A context manager, because a zip file stays open with it.

    Raises:
        DemoError: If the path holds anything but a zarr group.
        DemoError: If it is a damaged zip file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = _open_store_zip(path)
            entries = self._zip.infolist() if self._zip else []
            self._entries = {entry.filename: entry for entry in entries if not entry.is_dir()}
        except NsdePolicyError:
            raise
        except OSError as error:
            raise DemoError(f"{path} cannot be read: {error.strerror or error}") from error
        except Exception as error:  # zipfile raises many kinds for damaged files
            raise DemoError(f"{path} is a damaged zip file ({error}); copy it again") from error
        self.prefix = find_root(self._entries) or ""
        """Folder of the store in a zip file, empty or ending in a slash."""
        try:
            if not any(self.size(key) for key in ROOT_KEYS):
                raise DemoError(f"{path} is not a zarr group: it holds neither .zgroup nor zarr.json")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def kind(self) -> str:
        """Container of the store, directory or zip."""
        return "zip" if self._zip else "directory"

    @cached_property
    def zarr_store(self) -> Any:
        """The files as zarr reads them, below `prefix`."""
        from zarr.storage import LocalStore, ZipStore

        return ZipStore(self.path, mode="r") if self._zip else LocalStore(self.path, read_only=True)

    def close(self) -> None:
        """Close the underlying files."""
        if self._zip:
            self._zip.close()
            self.__dict__.pop("zarr_store", None)  # closed with the last array that reads it

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes, None if it does not exist.

        Raises:
            DemoError: If it is a folder, a pipe, a device or a link that leads nowhere.
        """
        if self._zip:
            entry = self._entries.get(self.prefix + key)
            return entry.file_size if entry else None
        try:
            found = os.stat(self.path / key)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.lexists(self.path / key):
                return None
            raise DemoError(f"{key} is a link that leads nowhere") from None
        except OSError as error:
            raise DemoError(f"{key} cannot be read: {error.strerror or error}") from error
        if not stat.S_ISREG(found.st_mode):
            raise DemoError(f"{key} is not a regular file")
        return found.st_size

    def read(self, key: str, length: int) -> bytes:
        """Read the first `length` bytes of a file."""
        with wrap_read_errors(f"{key} cannot be read"):
            opened: Any = (
                self._zip.open(self.prefix + key)
                if self._zip
                else open_regular(self.path / key, error=DemoError)
            )
            with opened as file:
                content: bytes = file.read(length)
                return content

    def read_metadata(self, key: str) -> dict[str, Any]:
        """Read a JSON object; empty if the file does not exist."""
        size = self.size(key)
        if size is None:
            return {}
        if size > MAX_JSON_BYTES:
            raise DemoError(f"{key} has {size} bytes, expected at most {MAX_JSON_BYTES}")
        content = self.read(key, MAX_JSON_BYTES + 1)
        return parse_json(content, name=key, error=DemoError, allow_nan=True)

    def list_folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in `folder`, sorted."""
        if self._zip:
            start = f"{self.prefix}{folder}/"
            below = (name.removeprefix(start) for name in self._entries if name.startswith(start))
            return sorted({name.partition("/")[0] for name in below if "/" in name})
        path = self.path / folder
        with wrap_read_errors(f"{folder} cannot be read"):
            return sorted(child.name for child in path.iterdir() if child.is_dir()) if path.is_dir() else []


@contextmanager
def wrap_read_errors(message: str, kind: type[NsdePolicyError] = DemoError) -> Iterator[None]:
    """Raise one kind of error for every other: zipfile raises many kinds for damaged files."""
    try:
        yield
    except Exception as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise kind(f"{message}: {why}") from error


def find_root(names: Iterable[str]) -> str | None:
    """Return the prefix of the uppermost zarr group among file names, empty or ending in a slash."""
    prefixes = [name[: name.rfind("/") + 1] for name in names if name.rpartition("/")[2] in ROOT_KEYS]
    return min(prefixes, key=lambda prefix: prefix.count("/"), default=None)


def _open_store_zip(path: Path) -> zipfile.ZipFile | None:
    """Open a zip file; None for a directory."""
    if path.is_dir():
        if not any(path.iterdir()):
            raise DemoError(f"{path} is empty; expected a zarr store with data/ and meta/")
        return None
    if not path.exists():
        raise DemoError(f"{path} does not exist; expected a zarr directory or a zip of one")
    if not path.is_file():
        raise DemoError(f"{path} is neither a file nor a folder; expected a zarr store")
    with open_regular(path, error=DemoError) as file:
        if file.read(2) != b"PK":
            raise DemoError(f"{path} is not a zarr store: expected a zarr directory or a zip of one")
    return zipfile.ZipFile(path)
