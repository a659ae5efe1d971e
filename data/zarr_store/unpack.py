"""A zarr store out of a zip file from a stranger: nothing is written that a store does not need."""

import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nsde_policy.data.zarr_store.files import ROOT_KEYS
from nsde_policy.errors import ArchiveError

MAX_MEMBERS = 100_000
BLOCK = 2**20
_FILE = r"\.z(?:group|attrs|metadata|array)|zarr\.json|\d+(?:[./]\d+)*|c(?:/\d+)*"
_IN_A_STORE = re.compile(rf"(?:[A-Za-z_][\w-]*/){{0,8}}(?:{_FILE})", re.ASCII)
"""Metadata and chunks, formats 2 and 3, below folders with names of arrays and groups."""


def unpack_store(
    archive: Path, folder: Path, *, limit: int, check_space: Callable[[int], None] = lambda _: None
) -> None:
    """Write the one store that `archive` holds, at its top or in a folder of it, into `folder`.

    The whole archive is refused, before anything is written, when a member's name leads outside, when
    one is a link, a device, encrypted or there twice, when the store holds more than `limit` bytes or a
    file that belongs to no store. Files beside the store, such as a licence, are left in the archive.
    """
    with _reading():
        opened = zipfile.ZipFile(archive)
    with opened:
        members = _members_of_the_store(opened, limit)
        check_space(sum(info.file_size for info in members.values()))
        for name, info in members.items():
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("xb") as file:
                    for block in _blocks(opened, info):
                        file.write(block)
            except (FileExistsError, NotADirectoryError) as error:
                raise ArchiveError(f"the archive holds a file and a folder named {name!r}") from error


def _blocks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """What a member holds; it is compared with its checksum on the way."""
    with _reading():
        source = archive.open(info)
    with source:
        while True:
            with _reading():
                block = source.read(BLOCK)
            if not block:
                return
            yield block


@contextmanager
def _reading() -> Iterator[None]:
    """Say that the archive is damaged: a spoilt zip fails in many ways."""
    try:
        yield
    except Exception as error:
        raise ArchiveError(f"the archive is damaged ({error or type(error).__name__})") from error


def _members_of_the_store(archive: zipfile.ZipFile, limit: int) -> dict[str, zipfile.ZipInfo]:
    """Files to write, by their path in the store."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise ArchiveError(f"the archive has {len(infos)} members, expected at most {MAX_MEMBERS}")
    for info in infos:
        _refuse_dangerous(info)
    files = {info.filename: info for info in infos if not info.is_dir()}
    if len(files) < sum(not info.is_dir() for info in infos):
        raise ArchiveError("the archive holds two members of one name")
    roots = [name for name in files if name.rpartition("/")[2] in ROOT_KEYS]
    if not roots:
        raise ArchiveError("the archive holds no zarr store: neither .zgroup nor zarr.json is in it")
    prefix = min(roots, key=lambda name: name.count("/")).rpartition("/")[0]
    prefix += "/" if prefix else ""
    members = {name.removeprefix(prefix): info for name, info in files.items() if name.startswith(prefix)}
    for name in members:
        if not _IN_A_STORE.fullmatch(name):
            raise ArchiveError(f"the archive holds {prefix + name!r}, which is no part of a zarr store")
    size = sum(info.file_size for info in members.values())
    if size > limit:
        raise ArchiveError(f"the archive unpacks to {size} bytes, expected at most {limit}")
    return members


def _refuse_dangerous(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    parts = name.removesuffix("/").split("/")
    if re.search(r"[\\:\x00-\x1f]", name) or {"", ".", ".."} & set(parts):
        raise ArchiveError(f"the archive holds {name!r}, a name that may lead outside its folder")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveError(f"the archive holds {name!r}, which is neither a file nor a folder")
    if info.flag_bits & 0x1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveError(f"the archive holds {name!r}, which is encrypted or packed in an unknown way")
