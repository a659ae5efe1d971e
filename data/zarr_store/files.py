"""The files of a zarr store, in a folder or a zip, read without trusting them."""

import zipfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsde_policy.errors import DemoError, wrap_read_errors
from nsde_policy.files import MAX_JSON_BYTES, open_regular, parse_json

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrStore

MAX_ARRAY_METADATA_BYTES = 2**20
"""The metadata of an array are read several times, so damage must not make them long."""
ROOT_KEYS = (".zgroup", "zarr.json")
"""Files that mark the root group of a store, formats 2 and 3."""
OTHER_FORMATS = (
    "expected zarr, LeRobot (meta/info.json), HDF5 (.hdf5), Minari, npz or csv files, or ROS 2 bags; "
    "docs/data.md describes them"
)
"""What else a path that no reader recognises could hold."""


class StoreFiles:
    """Files named by their key, such as data/state/.zarray; raises `DemoError` for what is no store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            raise DemoError(f"{path} does not exist; expected a zarr directory or a zip of one")
        self._root: Path | zipfile.Path = path
        if not path.is_dir():
            open_regular(path, error=DemoError).close()
            if path.suffix != ".zip" and not zipfile.is_zipfile(path):
                raise DemoError(f"{path} is neither a zarr directory nor a zip of one", OTHER_FORMATS)
            with wrap_read_errors(f"{path} is neither a zarr directory nor an undamaged zip of one"):
                archive = zipfile.ZipFile(path)
                roots = [name for name in archive.namelist() if name.rpartition("/")[2] in ROOT_KEYS]
                key = min(roots, key=lambda name: name.count("/"), default="")  # closest to the top
                self._root = zipfile.Path(archive, key[: key.rfind("/") + 1])
        if not any(self.size(key) for key in ROOT_KEYS):
            self.close()
            raise DemoError(
                f"{path} is not a zarr group: it holds neither .zgroup nor zarr.json", OTHER_FORMATS
            )

    @property
    def container(self) -> str:
        """Kind of the container: directory or zip."""
        return "directory" if isinstance(self._root, Path) else "zip"

    @property
    def root(self) -> str:
        """Folder of the store in its zip, with a slash at its end; empty in a directory."""
        return "" if isinstance(self._root, Path) else self._root.at

    @cached_property
    def zarr_store(self) -> "ZarrStore":
        """The files as zarr reads them; closed with the last array that reads them."""
        from zarr.storage import LocalStore, ZipStore

        if isinstance(self._root, Path):
            return LocalStore(self._path, read_only=True)
        return ZipStore(self._path, mode="r")

    def close(self) -> None:
        """Close the zip file of the store, if it is one."""
        if isinstance(self._root, zipfile.Path):
            self._root.root.close()

    def list_folders(self, folder: str) -> list[str]:
        """Return the keys of the folders in a folder; none if it does not exist."""
        path = self._root / folder
        if not path.is_dir():
            return []
        return [f"{folder}/{child.name}" for child in path.iterdir() if child.is_dir()]

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes, None if it does not exist; raise for pipes and devices."""
        file = self._root / key
        if not file.exists():
            return None
        if not file.is_file():
            raise DemoError(f"{file} is not a regular file")
        return file.stat().st_size if isinstance(file, Path) else file.root.getinfo(file.at).file_size

    def read(self, key: str, length: int) -> bytes:
        """Read the first `length` bytes of a file that `size` has found."""
        file = self._root / key
        with (
            wrap_read_errors(f"{key} cannot be read"),
            open_regular(file, error=DemoError) if isinstance(file, Path) else file.open("rb") as content,
        ):
            return content.read(length)

    def read_json(self, key: str) -> dict[str, Any]:
        """Read a JSON object; empty if the file does not exist."""
        size = self.size(key)
        if size is None:
            return {}
        limit = MAX_ARRAY_METADATA_BYTES if "/" in key else MAX_JSON_BYTES
        if size > limit:
            raise DemoError(f"{key} has {size} bytes, expected at most {limit}")
        return parse_json(self.read(key, size), name=key, error=DemoError, allow_nan=True)
