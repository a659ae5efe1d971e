"""Safe extraction of a zarr store from an untrusted zip archive."""

import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nsde_policy.data.zarr_store.files import CheckedZip, find_root, wrap_read_errors
from nsde_policy.errors import ArchiveError

MAX_MEMBERS = 100_000
_DAMAGED = "the archive is damaged"
_STEP_BYTES = 2**20
_STORE_FILE = r"\.z(?:group|attrs|metadata|array)|zarr\.json|\d+(?:[./]\d+)*|c(?:/\d+)*"
_STORE_PATH = re.compile(rf"(?:[A-Za-z_][\w-]*/){{0,8}}(?:{_STORE_FILE})", re.ASCII)
"""Metadata and chunks, formats 2 and 3, below folders named like arrays and groups."""


def extract_store(
    archive: Path, folder: Path, *, max_bytes: int, check_space: Callable[[int], None] = lambda _: None
) -> None:
    """Extract the one store that `archive` holds, at its top or in a folder, into `folder`.

    Files beside the store, such as a licence, are not extracted.

    Args:
        archive: A zip file.
        folder: An empty folder.
        max_bytes: Size limit of the extracted store.
        check_space: Called with the extracted size; raises if the disk cannot hold it.

    Raises:
        ArchiveError: Before anything is written, if a member's path leads outside, if it is a link, a device,
            encrypted, a duplicate or not part of a zarr store, or if the store is too large.
    """
    with wrap_read_errors(_DAMAGED, ArchiveError):
        opened = CheckedZip(archive, error=ArchiveError)
    with opened:
        members = _select_members(opened, max_bytes)
        check_space(sum(info.file_size for info in members.values()))
        for name, info in members.items():
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("xb") as file:
                    _copy_member(opened, info, file)
            except (FileExistsError, NotADirectoryError) as error:
                raise ArchiveError(f"the archive holds a file and a folder named {name!r}") from error


def _copy_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO) -> None:
    """Copy a member in small steps and compare its checksum."""
    with wrap_read_errors(_DAMAGED, ArchiveError):
        member = archive.open(info)
    with member:
        while True:
            with wrap_read_errors(_DAMAGED, ArchiveError):
                part = member.read(_STEP_BYTES)
            if not part:
                return
            file.write(part)


def _select_members(archive: zipfile.ZipFile, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the files to write by their path in the store."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise ArchiveError(f"the archive has {len(infos)} members, expected at most {MAX_MEMBERS}")
    for info in infos:
        _check_member(info)
    files = {info.filename: info for info in infos if not info.is_dir()}
    if len(files) < sum(not info.is_dir() for info in infos):
        raise ArchiveError("the archive holds two members with the same name")
    prefix = find_root(files)
    if prefix is None:
        raise ArchiveError("the archive holds no zarr store: neither .zgroup nor zarr.json is in it")
    members = {name.removeprefix(prefix): info for name, info in files.items() if name.startswith(prefix)}
    for name in members:
        if not _STORE_PATH.fullmatch(name):
            raise ArchiveError(f"the archive holds {prefix + name!r}, which is not part of a zarr store")
    size = sum(info.file_size for info in members.values())
    if size > max_bytes:
        raise ArchiveError(f"the archive unpacks to {size} bytes, expected at most {max_bytes}")
    return members


def _check_member(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    parts = name.removesuffix("/").split("/")
    if re.search(r"[\\:\x00-\x1f]", name) or {"", ".", ".."} & set(parts):
        raise ArchiveError(f"the archive holds {name!r}, a path that may lead outside its folder")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveError(f"the archive holds {name!r}, which is neither a file nor a folder")
    if info.flag_bits & 0x1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveError(f"the archive holds {name!r}, which is encrypted or uses unknown compression")
