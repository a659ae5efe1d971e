"""Arrays in HDF5 and npz files, read on demand without pickles, and the `dataset.toml` next to files."""

import math
import re
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Set
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from nsde_policy.config import BaseConfig
from nsde_policy.data.source import SourceArray
from nsde_policy.data.types import Numbers
from nsde_policy.data.zarr_store.store import MAX_DEPTH
from nsde_policy.errors import ConfigError, DemoError, import_optional, wrap_read_errors
from nsde_policy.files import open_regular, read_file

OpenFile = Callable[[Path], Any]
OpenMember = Callable[[Path, str], IO[bytes]]
DATASET_FILE = "dataset.toml"
Settings = TypeVar("Settings", bound=BaseConfig)
keep_open = lru_cache(32)
"""Makes a function that opens files keep some open, also because decompressing begins at the start."""


class Hdf5Array(SourceArray):
    """A dataset of an HDF5 file, which is opened when it is read."""

    def __init__(self, file: Path, dataset: Any, open_file: OpenFile) -> None:
        self._file, self._path, self._open_file = file, dataset.name, open_file
        self.name, self.shape, self.dtype = f"{dataset.name} in {file}", dataset.shape or (), dataset.dtype

    def read(self, start: int, stop: int) -> Numbers:
        """Read some rows; chunks that were never written, which HDF5 reads as zeros, are damage."""
        with wrap_read_errors(f"rows {start} to {stop} of {self.name} cannot be read, restore them"):
            dataset = self._open_file(self._file)[self._path]
            self.check_bytes(math.prod(dataset.chunks or ()), "a chunk")
            steps = dataset.chunks or self.shape
            expected = math.prod(-(-size // step) for size, step in zip(self.shape, steps, strict=True))
            written = dataset.id.get_num_chunks() if dataset.chunks else dataset.id.get_storage_size()
            if written < expected:
                raise DemoError(f"{self.name} is incomplete: {written} of {expected} chunks were written")
            return np.asarray(dataset[start:stop])


class NpzArray(SourceArray):
    """A member of an npz file."""

    def __init__(self, path: Path, key: str, open_member: OpenMember) -> None:
        self._place, self._open, self.name = (path, f"{key}.npy"), open_member, f"{key} in {path}"
        member = open_member(*self._place)
        is_first = np.lib.format.read_magic(member) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            self.shape, self._is_fortran, self.dtype = read(member)
        self._start = member.tell()
        self.size = self._start + math.prod(self.shape) * self.dtype.itemsize
        """Bytes of the member, as its header declares them."""

    def read(self, start: int, stop: int) -> Numbers:
        """Read some rows; of columns that are contiguous, all."""
        with wrap_read_errors(f"rows {start} to {stop} of {self.name} cannot be read, restore them"):
            first, rows = (0, self.shape[0]) if self._is_fortran else (start, stop - start)
            self.check_bytes(rows * self.width, f"{rows} rows")
            size = self.dtype.itemsize * self.width
            member = self._open(*self._place)
            member.seek(self._start + first * size)
            values = np.frombuffer(member.read(rows * size), self.dtype)
            values = values.reshape((rows, *self.shape[1:]), order="F" if self._is_fortran else "C")
            return values[start - first : stop - first]


def open_hdf5(path: Path) -> Any:
    """Open a regular file with h5py; raise `DemoError` if it is no HDF5 file or truncated."""
    h5py = import_optional("h5py", "hdf5")
    open_regular(path, error=DemoError).close()
    with wrap_read_errors(f"{path} is not an undamaged HDF5 file"):
        return h5py.File(path, "r")


def find_datasets(file: Any, without: Set[str]) -> dict[str, Any]:
    """Return the datasets of an HDF5 file by name, except those in groups `without`."""
    links: dict[str, Any] = {}

    def add(name: str, link: Any) -> str | None:
        links[name] = link
        return name if name.count("/") > MAX_DEPTH else None  # stops the visit

    if deepest := file.visititems_links(add):
        raise DemoError(f"{file.filename} has groups in groups, {deepest:.60}…, more than {MAX_DEPTH} levels")
    for name, link in links.items():
        if type(link).__name__ != "HardLink":
            raise DemoError(f"{name} in {file.filename} is a link, which is not followed: put a copy there")
    items = {name: file[name] for name in links if without.isdisjoint(name.split("/"))}
    datasets = {name: item for name, item in items.items() if hasattr(item, "shape")}
    for name, dataset in datasets.items():
        if dataset.is_virtual or dataset.external:
            raise DemoError(f"{name} in {file.filename} is stored elsewhere and not read: put a copy there")
    return datasets


def open_npz(path: Path, open_member: OpenMember) -> dict[str, SourceArray]:
    """Return the arrays of an npz file by name; only their headers are read."""
    file = open_regular(path, error=DemoError)
    with wrap_read_errors(f"{path} is not an undamaged npz file"), zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        arrays = {name: NpzArray(path, name, open_member) for name in names}
        for name, array in arrays.items():
            size = archive.getinfo(f"{name}.npy").file_size
            if size != array.size and array.dtype.kind != "O":  # pickles have any size
                raise DemoError(
                    f"{array.name} declares {array.dtype} {array.shape}, {array.size} bytes, but has {size}; "
                    "restore it from the original"
                )
        return dict(arrays)


def open_npz_member(path: Path, name: str) -> IO[bytes]:
    """Open a member of an npz file; the file is closed together with it."""
    return zipfile.ZipFile(open_regular(path, error=DemoError)).open(name)


def get_dataset_format(folder: Path) -> str | None:
    """Return the `format` that `dataset.toml` names, "" if it names none, None if it cannot be read."""
    try:
        return str(_parse(folder).get("format", ""))
    except DemoError:
        return None


def load_dataset_toml(folder: Path, settings: type[Settings]) -> Settings:
    """Read `dataset.toml` of a folder; raise `DemoError` unless its keys are the fields of the settings."""
    try:
        return settings.from_dict(_parse(folder))
    except ConfigError as error:
        problem = re.sub(rf"{settings.__name__}[:.]? ?", "", str(error))
        raise DemoError(f"{folder / DATASET_FILE}: {problem}") from None


def _parse(folder: Path) -> dict[str, Any]:
    content = read_file(folder / DATASET_FILE, 2**20, error=DemoError)
    with wrap_read_errors(f"{folder / DATASET_FILE} is not TOML"):
        return tomllib.loads(content.decode())
