"""A zarr store as plain keys and bytes, in a directory or a zip file, before zarr interprets any of it."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from nsde_policy.errors import DamagedStoreError, NotAStoreError

ROOT_KEYS = (".zgroup", "zarr.json")
"""What marks the root group of a store, formats 2 and 3."""


class Files(Protocol):
    """Read-only access by key, such as data/state/.zarray."""

    kind: str
    """directory or zip."""
    prefix: str
    """What stands before every key in the underlying zarr store, empty or ending in a slash."""
    store: Any
    """The underlying zarr store."""

    def size(self, key: str) -> int | None:
        """Bytes under `key`; None where there are none."""

    def read(self, key: str, start: int = 0, length: int = -1) -> bytes:
        """`length` bytes from `start` on; all that follow where `length` is −1."""

    def children(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted."""

    def close(self) -> None:
        """Let go of open files."""


class DirectoryFiles:
    """A store in a directory."""

    kind = "directory"
    prefix = ""

    def __init__(self, root: Path) -> None:
        from zarr.storage import LocalStore

        if not any(root.iterdir()):
            raise NotAStoreError(f"{root} is empty; expected a zarr store with data/ and meta/")
        self._root = root
        self.store = LocalStore(root, read_only=True)

    def size(self, key: str) -> int | None:
        """Bytes under `key`; None where there is no file."""
        path = self._root / key
        with _said(key):
            return path.stat().st_size if path.is_file() else None

    def read(self, key: str, start: int = 0, length: int = -1) -> bytes:
        """Part of a file, or all of it."""
        with _said(key), (self._root / key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def children(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted."""
        path = self._root / folder
        with _said(folder):
            return sorted(child.name for child in path.iterdir() if child.is_dir()) if path.is_dir() else []

    def close(self) -> None:
        """Let go of open files."""
        self.store.close()


class ZipFiles:
    """A store in a zip file, at its top or in a folder of it."""

    kind = "zip"

    def __init__(self, path: Path) -> None:
        from zarr.storage import ZipStore

        self._zip = zipfile.ZipFile(path)
        self._entries = {entry.filename: entry for entry in self._zip.infolist() if not entry.is_dir()}
        roots = [name for name in self._entries if name.rpartition("/")[2] in ROOT_KEYS]
        self.prefix = min(roots, key=lambda name: name.count("/")).rpartition("/")[0] if roots else ""
        self.prefix += "/" if self.prefix else ""
        self.store = ZipStore(path, mode="r")

    def size(self, key: str) -> int | None:
        """Bytes under `key`; None where there is no file."""
        entry = self._entries.get(self.prefix + key)
        return entry.file_size if entry else None

    def read(self, key: str, start: int = 0, length: int = -1) -> bytes:
        """Part of a file, or all of it."""
        with _said(key), self._zip.open(self.prefix + key) as file:
            file.seek(start)
            return file.read(length)

    def children(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted."""
        inside = self.prefix + (f"{folder}/" if folder else "")
        below = (name[len(inside) :] for name in self._entries if name.startswith(inside))
        return sorted({name.split("/")[0] for name in below if "/" in name})

    def close(self) -> None:
        """Let go of open files."""
        if self.store._is_open:  # zarr 3.1 fails to close a zip that nothing was read from
            self.store.close()
        self._zip.close()


@contextmanager
def _said(key: str) -> Iterator[None]:
    """Say which file could not be read, and why: a spoilt zip fails in many ways."""
    try:
        yield
    except Exception as error:
        why = getattr(error, "strerror", None) or error
        raise DamagedStoreError(f"{key} cannot be read: {why}") from error


def open_files(path: Path) -> Files:
    """Open a directory or a zip file; refuses whatever holds no zarr group."""
    try:
        files = _open_either(path)
        if not any(files.size(key) for key in ROOT_KEYS):
            files.close()
            raise NotAStoreError(f"{path} is no zarr group: it holds neither .zgroup nor zarr.json")
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise DamagedStoreError(f"{path} is a damaged zip file ({error}); copy it again") from error
    except OSError as error:
        raise NotAStoreError(f"{path} cannot be read: {error.strerror or error}") from error
    return files


def _open_either(path: Path) -> Files:
    if path.is_dir():
        return DirectoryFiles(path)
    if not path.exists():
        raise NotAStoreError(f"{path} does not exist; expected a zarr directory or a zip of one")
    if not path.is_file():  # a pipe would keep us waiting
        raise NotAStoreError(f"{path} is neither a file nor a folder; expected a zarr store")
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            raise NotAStoreError(f"{path} is no zarr store: expected a zarr directory or a zip of one")
    return ZipFiles(path)
