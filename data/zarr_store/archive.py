"""Safe extraction of a zarr store from an untrusted zip archive."""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nsde_policy.data.zarr_store.files import find_root, wrap_read_errors
from nsde_policy.errors import DemoError

_DAMAGED = "the archive is damaged"
_STEP_BYTES = 2**20
_STORE_FILE = r"\.z(?:group|attrs|metadata|array)|zarr\.json|\d+(?:[./]\d+)*|c(?:/\d+)*"
_STORE_PATH = re.compile(rf"(?:[A-Za-z_][\w-]*/){{0,8}}(?:{_STORE_FILE})", re.ASCII)
"""Metadata and chunks, formats 2 and 3, below folders named like arrays and groups."""


def extract_store(
    archive: Path, folder: Path, *, max_bytes: int, check_space: Callable[[int], None] = lambda _: None
) -> None:
    """Extract the one store that `archive` holds, at its top or in a folder, into `folder`.

    Only files named like those of a zarr store are extracted, so that no path leads out of `folder`. Links
    become plain files.

    Args:
        archive: A zip file.
        folder: An empty folder.
        max_bytes: Size limit of the extracted store.
        check_space: Called with the extracted size; raises if the disk cannot hold it.

    Raises:
        DemoError: If the archive is damaged, or holds no store, one that is too large, or a file and a
            folder of one name.
    """
    with wrap_read_errors(_DAMAGED, DemoError):
        opened = zipfile.ZipFile(archive)
    with opened:
        members = _select_members(opened, max_bytes)
        check_space(sum(info.file_size for info in members.values()))
        for name, info in members.items():
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("xb") as file:
                    _copy_member(opened, info, file)
            except (FileExistsError, NotADirectoryError) as error:
                raise DemoError(f"the archive holds a file and a folder named {name!r}") from error


def _copy_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO) -> None:
    """Copy a member in small steps and compare its checksum."""
    with wrap_read_errors(_DAMAGED, DemoError):
        member = archive.open(info)
    with member:
        while True:
            with wrap_read_errors(_DAMAGED, DemoError):
                part = member.read(_STEP_BYTES)
            if not part:
                return
            file.write(part)


def _select_members(archive: zipfile.ZipFile, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the files to write by their path in the store."""
    files = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    prefix = find_root(files)
    if prefix is None:
        raise DemoError("the archive holds no zarr store: neither .zgroup nor zarr.json is in it")
    below = {name.removeprefix(prefix): info for name, info in files.items() if name.startswith(prefix)}
    members = {name: info for name, info in below.items() if _STORE_PATH.fullmatch(name)}
    size = sum(info.file_size for info in members.values())
    if size > max_bytes:
        raise DemoError(f"the archive unpacks to {size} bytes, expected at most {max_bytes}")
    return members
