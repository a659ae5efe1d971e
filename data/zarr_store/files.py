"""Raw files of a zarr store, in a directory or a zip file, before zarr interprets them."""

import abc
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nsde_policy.errors import DamagedStoreError, NotAStoreError

ROOT_KEYS = (".zgroup", "zarr.json")
"""Files that mark the root group of a store, formats 2 and 3."""


class Files(abc.ABC):
    """Read-only access to the files of a store by key, such as data/state/.zarray."""

    kind: str
    """directory or zip."""
    prefix: str = ""
    """Path of the store's root in the underlying zarr store, empty or ending in a slash."""
    store: Any
    """The underlying zarr store."""

    @abc.abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes, None if it does not exist."""

    @abc.abstractmethod
    def children(self, folder: str) -> list[str]:
        """Return the names of the folders directly in `folder`, sorted."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the underlying files."""

    @abc.abstractmethod
    def _open(self, key: str) -> IO[bytes]: ...

    def read(self, key: str, start: int = 0, length: int = -1) -> bytes:
        """Read `length` bytes from `start` on, or all that follow if `length` is −1."""
        with _wrap_read_errors(key), self._open(key) as file:
            file.seek(start)
            return file.read(length)


class _DirectoryFiles(Files):
    kind = "directory"

    def __init__(self, root: Path) -> None:
        from zarr.storage import LocalStore

        if not any(root.iterdir()):
            raise NotAStoreError(f"{root} is empty; expected a zarr store with data/ and meta/")
        self._root = root
        self.store = LocalStore(root, read_only=True)

    def size(self, key: str) -> int | None:
        path = self._root / key
        with _wrap_read_errors(key):
            return path.stat().st_size if path.is_file() else None

    def children(self, folder: str) -> list[str]:
        path = self._root / folder
        with _wrap_read_errors(folder):
            return sorted(child.name for child in path.iterdir() if child.is_dir()) if path.is_dir() else []

    def close(self) -> None:
        self.store.close()

    def _open(self, key: str) -> IO[bytes]:
        return (self._root / key).open("rb")


class _ZipFiles(Files):
    """Files of a store at the top of a zip file or in one of its folders."""

    kind = "zip"

    def __init__(self, path: Path) -> None:
        from zarr.storage import ZipStore

        self._zip = zipfile.ZipFile(path)
        self._entries = {entry.filename: entry for entry in self._zip.infolist() if not entry.is_dir()}
        self.prefix = find_root(self._entries) or ""
        self.store = ZipStore(path, mode="r")

    def size(self, key: str) -> int | None:
        entry = self._entries.get(self.prefix + key)
        return entry.file_size if entry else None

    def children(self, folder: str) -> list[str]:
        inside = self.prefix + (f"{folder}/" if folder else "")
        below = (name[len(inside) :] for name in self._entries if name.startswith(inside))
        return sorted({name.split("/")[0] for name in below if "/" in name})

    def close(self) -> None:
        if self.store._is_open:  # zarr 3.1 fails to close a zip that was never read
            self.store.close()
        self._zip.close()

    def _open(self, key: str) -> IO[bytes]:
        return self._zip.open(self.prefix + key)


@contextmanager
def _wrap_read_errors(key: str) -> Iterator[None]:
    """Raise `DamagedStoreError` with the key for every error: zipfile raises many kinds for damaged files."""
    try:
        yield
    except Exception as error:
        why = getattr(error, "strerror", None) or error
        raise DamagedStoreError(f"{key} cannot be read: {why}") from error


def find_root(names: Iterable[str]) -> str | None:
    """Return the prefix of the uppermost zarr group among file names, empty or ending in a slash."""
    prefixes = [name[: name.rfind("/") + 1] for name in names if name.rpartition("/")[2] in ROOT_KEYS]
    return min(prefixes, key=lambda prefix: prefix.count("/"), default=None)


def open_files(path: Path) -> Files:
    """Open a directory or a zip file that holds a zarr group.

    Raises:
        NotAStoreError: If the path holds anything else.
        DamagedStoreError: If it is a damaged zip file.
    """
    try:
        files = _open_directory_or_zip(path)
        if not any(files.size(key) for key in ROOT_KEYS):
            files.close()
            raise NotAStoreError(f"{path} is not a zarr group: it holds neither .zgroup nor zarr.json")
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise DamagedStoreError(f"{path} is a damaged zip file ({error}); copy it again") from error
    except OSError as error:
        raise NotAStoreError(f"{path} cannot be read: {error.strerror or error}") from error
    return files


def _open_directory_or_zip(path: Path) -> Files:
    if path.is_dir():
        return _DirectoryFiles(path)
    if not path.exists():
        raise NotAStoreError(f"{path} does not exist; expected a zarr directory or a zip of one")
    if not path.is_file():  # opening a pipe would block
        raise NotAStoreError(f"{path} is neither a file nor a folder; expected a zarr store")
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            raise NotAStoreError(f"{path} is not a zarr store: expected a zarr directory or a zip of one")
    return _ZipFiles(path)
