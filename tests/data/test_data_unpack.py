"""Tests for data/zarr_store/unpack.py: archives that are damaged, or want to do harm."""

import stat
import zipfile

import pytest

from nsde_policy.data.zarr_store.unpack import unpack_store
from nsde_policy.errors import ArchiveError
from tests.helpers.demo_stores import INSIDE, files_of, packed, write_store

LIMIT = 2**20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return files_of(write_store(tmp_path_factory.mktemp("store") / "demos.zarr"))


def unpack(content, folder):
    """What of an archive is written, below `folder`/store, and everything else below `folder`."""
    (folder / "archive.zip").write_bytes(content)
    (folder / "store").mkdir()
    unpack_store(folder / "archive.zip", folder / "store", limit=LIMIT)
    return files_of(folder / "store")


def special(name, mode=0, **fields):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    for field, value in fields.items():
        setattr(info, field, value)
    return info


@pytest.mark.parametrize("inside", ["", "demos.zarr/", INSIDE])
def test_a_store_is_found_at_the_top_or_in_a_folder(files, tmp_path, inside):
    assert unpack(packed(files, inside=inside), tmp_path) == files


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_both_formats_are_known(tmp_path, zarr_format):
    files = files_of(write_store(tmp_path / "demos.zarr", zarr_format=zarr_format))
    assert unpack(packed(files), tmp_path) == files


def test_files_beside_the_store_stay_in_the_archive(files, tmp_path):
    content = packed(files, extra=[("pusht/LICENSE", b"MIT"), ("__MACOSX/._x", b"?")])
    assert unpack(content, tmp_path) == files


@pytest.mark.parametrize(
    "member",
    [
        "../evil",
        "/tmp/evil",
        INSIDE + "../../../evil",
        INSIDE + "data/../../evil",
        "..\\evil",
        "C:evil",
        "./evil",
        "a//b",
        "a\nb",
        special(INSIDE + "data/link", stat.S_IFLNK | 0o777),
        special("pusht/pipe", stat.S_IFIFO | 0o666),
        special(INSIDE + "data/state/9.0", compress_type=zipfile.ZIP_BZIP2),
        INSIDE + "data/state/run.sh",
        INSIDE + "setup.py",
        INSIDE + "data/state/.zarray",
        INSIDE + "data/0/0",
    ],
    ids=lambda member: getattr(member, "filename", member),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_has_no_business_there_spoils_the_archive(files, tmp_path, member):
    content = packed(files, extra=[(INSIDE + "data/0", b""), (member, b"/etc/passwd")])
    with pytest.raises(ArchiveError, match=r"the archive holds .*"):
        unpack(content, tmp_path)
    assert {name.split("/")[0] for name in files_of(tmp_path)} <= {"archive.zip", "store"}


def test_a_bomb_is_refused_before_it_unfolds(files, tmp_path):
    content = packed(files, extra=[(INSIDE + "data/img/99.0.0.0", bytes(LIMIT))])
    with pytest.raises(ArchiveError, match="unpacks to"):
        unpack(content, tmp_path)
    assert not any((tmp_path / "store").iterdir())


def test_a_bomb_that_lies_about_its_size_is_cut_off(files, tmp_path):
    size = 1_234_567
    bomb = packed({**files, "data/img/99.0.0.0": bytes(size)})
    said, lie = size.to_bytes(4, "little"), (100).to_bytes(4, "little")
    assert bomb.count(said) == 2
    with pytest.raises(ArchiveError, match="damaged"):
        unpack(bomb.replace(said, lie), tmp_path)
    assert sum(map(len, files_of(tmp_path / "store").values())) < size / 2


def test_too_many_members_are_refused(files, tmp_path, monkeypatch):
    monkeypatch.setattr("nsde_policy.data.zarr_store.unpack.MAX_MEMBERS", 10)
    with pytest.raises(ArchiveError, match="expected at most 10"):
        unpack(packed(files), tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK", b"<html></html>", b"PK\x05\x06" + bytes(30)])
def test_what_is_no_archive_is_refused(tmp_path, content):
    with pytest.raises(ArchiveError, match=r"damaged|no zarr store"):
        unpack(content, tmp_path)


def test_a_cut_archive_is_refused_wherever_it_is_cut(files, tmp_path):
    content = packed(files)
    for i, size in enumerate(range(0, len(content), len(content) // 40)):
        (tmp_path / str(i)).mkdir()
        with pytest.raises(ArchiveError):
            unpack(content[:size], tmp_path / str(i))
