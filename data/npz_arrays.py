"""Arrays in npz files, read row by row without unpickling anything."""

import math
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nsde_policy.data.parted_array import Part, PartedArray
from nsde_policy.data.types import Numbers
from nsde_policy.data.zarr_store.store import wrap_read_errors
from nsde_policy.errors import DemoError
from nsde_policy.files import open_regular


class Header(NamedTuple):
    """Shape, order and type of a member of an npz file."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


class NpzArray(PartedArray):
    """An array with a member of an npz file for each episode, or for all."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        super().__init__(name, parts)
        self._open = lru_cache(1)(_open_member)  # reading on is cheaper than decompressing from the start

    def _read_part(self, part: Part, start: int, stop: int) -> Numbers:
        with wrap_read_errors(f"rows {start} to {stop} of {part} cannot be read; restore them"):
            member, (shape, is_fortran, dtype), begin = self._open(part.file, part.name)
            row = dtype.itemsize * math.prod(shape[1:])
            first, last = (0, shape[0]) if is_fortran else (start, stop)  # columns are contiguous, not rows
            self.check_bytes((last - first) * self.width, f"{last - first} rows")
            member.seek(begin + row * first)
            values = np.frombuffer(member.read(row * (last - first)), dtype)
            if is_fortran:
                return values.reshape(shape, order="F")[start:stop]
            return values.reshape(stop - start, *shape[1:])


def read_headers(path: Path) -> dict[str, Header]:
    """Return the arrays of an npz file by name, without reading them."""
    found = {}
    with _open_archive(path) as archive, wrap_read_errors(f"{path} is not an undamaged npz file"):
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as member:
                    found[name.removesuffix(".npy")] = _read_header(member)
    return found


def make_part(path: Path, name: str, header: Header, rows: int) -> Part:
    """Return the part that holds a whole array."""
    return Part(path, name, header.shape, header.dtype, rows)


def _read_header(member: IO[bytes]) -> Header:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return Header(*read(member))


def _open_member(path: Path, name: str) -> tuple[IO[bytes], Header, int]:
    """Open a member; return it with its header and with where its numbers begin."""
    member = _open_archive(path).open(f"{name}.npy")
    header = _read_header(member)
    return member, header, member.tell()


def _open_archive(path: Path) -> zipfile.ZipFile:
    file = open_regular(path, error=DemoError)
    with wrap_read_errors(f"{path} is not an undamaged npz file"):
        return zipfile.ZipFile(file)
