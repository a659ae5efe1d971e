"""Raw files of a zarr store, in a directory or a zip file, before zarr interprets them."""

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from nsde_policy.errors import DamagedStoreError, NotAStoreError, NsdePolicyError
from nsde_policy.files import parse_json

ROOT_KEYS = (".zgroup", "zarr.json")
"""Files that mark the root group of a store, formats 2 and 3."""
MAX_METADATA_BYTES = 16 * 2**20


class StoreFiles:
    """Read-only access to the files of a store by key, such as data/state/.zarray.

    A context manager, because a zip file stays open with it.

    Raises:
        NotAStoreError: If the path holds anything but a zarr group.
        DamagedStoreError: If it is a damaged zip file.
    """

    def __init__(self, path: Path) -> None:
        from zarr.storage import LocalStore, ZipStore

        self.path = path
        try:
            self._zip = _open_zip(path)
            entries = self._zip.infolist() if self._zip else []
            self._entries = {entry.filename: entry for entry in entries if not entry.is_dir()}
            self.prefix = find_root(self._entries) or ""
            self.zarr_store: Any = ZipStore(path, mode="r") if self._zip else LocalStore(path, read_only=True)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise DamagedStoreError(f"{path} is a damaged zip file ({error}); copy it again") from error
        except OSError as error:
            raise NotAStoreError(f"{path} cannot be read: {error.strerror or error}") from error
        if not any(self.size(key) for key in ROOT_KEYS):
            self.close()
            raise NotAStoreError(f"{path} is not a zarr group: it holds neither .zgroup nor zarr.json")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def kind(self) -> str:
        """Container of the store, directory or zip."""
        return "zip" if self._zip else "directory"

    def close(self) -> None:
        """Close the underlying files."""
        if self._zip is None or self.zarr_store._is_open:  # zarr 3.1 fails to close a zip that was never read
            self.zarr_store.close()
        if self._zip:
            self._zip.close()

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes, None if it does not exist."""
        if self._zip:
            entry = self._entries.get(self.prefix + key)
            return entry.file_size if entry else None
        with wrap_read_errors(f"{key} cannot be read"):
            return (self.path / key).stat().st_size if (self.path / key).is_file() else None

    def read(self, key: str, start: int = 0, length: int = -1) -> bytes:
        """Read `length` bytes from `start` on, or all that follow if `length` is −1."""
        with wrap_read_errors(f"{key} cannot be read"):
            opened = self._zip.open(self.prefix + key) if self._zip else (self.path / key).open("rb")
            with opened as file:
                file.seek(start)
                return file.read(length)

    def read_metadata(self, key: str) -> dict[str, Any]:
        """Read a JSON object; empty if the file does not exist."""
        size = self.size(key)
        if size is None:
            return {}
        if size > MAX_METADATA_BYTES:
            raise DamagedStoreError(f"{key} has {size} bytes, expected at most {MAX_METADATA_BYTES}")
        return parse_json(self.read(key), name=key, error=DamagedStoreError)

    def list_folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in `folder`, sorted."""
        if self._zip:
            inside = f"{self.prefix}{folder}/"
            below = (name[len(inside) :] for name in self._entries if name.startswith(inside))
            return sorted({name.split("/")[0] for name in below if "/" in name})
        path = self.path / folder
        with wrap_read_errors(f"{folder} cannot be read"):
            return sorted(child.name for child in path.iterdir() if child.is_dir()) if path.is_dir() else []


@contextmanager
def wrap_read_errors(message: str, kind: type[NsdePolicyError] = DamagedStoreError) -> Iterator[None]:
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


def _open_zip(path: Path) -> zipfile.ZipFile | None:
    """Open a zip file; None for a directory."""
    if path.is_dir():
        if not any(path.iterdir()):
            raise NotAStoreError(f"{path} is empty; expected a zarr store with data/ and meta/")
        return None
    if not path.exists():
        raise NotAStoreError(f"{path} does not exist; expected a zarr directory or a zip of one")
    if not path.is_file():  # opening a pipe would block
        raise NotAStoreError(f"{path} is neither a file nor a folder; expected a zarr store")
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            raise NotAStoreError(f"{path} is not a zarr store: expected a zarr directory or a zip of one")
    return zipfile.ZipFile(path)
