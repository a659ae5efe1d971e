"""Tests for data/zarr_store/archive.py: damaged and malicious archives."""

import stat
import zipfile

import pytest

from nsde_policy.data.zarr_store.archive import extract_store
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import INSIDE, read_files, write_store, zip_files

LIMIT = 2**20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return read_files(write_store(tmp_path_factory.mktemp("store") / "demos.zarr"))


def extract(content, folder):
    """Extract an archive to `folder`/store and return the files written there."""
    (folder / "archive.zip").write_bytes(content)
    (folder / "store").mkdir()
    extract_store(folder / "archive.zip", folder / "store", max_bytes=LIMIT)
    return read_files(folder / "store")


def make_member(name, mode=0, **fields):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    for field, value in fields.items():
        setattr(info, field, value)
    return info


@pytest.mark.parametrize("inside", ["", "demos.zarr/", INSIDE])
def test_store_is_found_at_the_top_or_in_a_folder(files, tmp_path, inside):
    assert extract(zip_files(files, inside=inside), tmp_path) == files


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_both_zarr_formats_are_extracted(tmp_path, zarr_format):
    files = read_files(write_store(tmp_path / "demos.zarr", zarr_format=zarr_format))
    assert extract(zip_files(files), tmp_path) == files


def test_other_files_are_not_extracted(files, tmp_path):
    content = zip_files(files, extra=[("pusht/LICENSE", b"MIT"), ("__MACOSX/._x", b"?")])
    assert extract(content, tmp_path) == files


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
        make_member(INSIDE + "data/link", stat.S_IFLNK | 0o777),
        make_member("pusht/pipe", stat.S_IFIFO | 0o666),
        INSIDE + "data/state/run.sh",
        INSIDE + "setup.py",
    ],
    ids=lambda member: getattr(member, "filename", member),
)
def test_only_files_of_the_store_are_written(files, tmp_path, member):
    assert extract(zip_files(files, extra=[(member, b"/etc/passwd")]), tmp_path) == files
    assert {path.name for path in tmp_path.iterdir()} == {"archive.zip", "store"}


def test_a_file_and_a_folder_of_one_name_are_rejected(files, tmp_path):
    content = zip_files(files, extra=[(INSIDE + "data/0", b""), (INSIDE + "data/0/0", b"")])
    with pytest.raises(DemoError, match="a file and a folder named 'data/0/0'"):
        extract(content, tmp_path)


def test_zip_bomb_is_rejected_before_extraction(files, tmp_path):
    content = zip_files(files, extra=[(INSIDE + "data/img/99.0.0.0", bytes(LIMIT))])
    with pytest.raises(DemoError, match="unpacks to"):
        extract(content, tmp_path)
    assert not any((tmp_path / "store").iterdir())


def test_zip_bomb_with_a_false_size_is_stopped(files, tmp_path):
    size = 1_234_567
    bomb = zip_files({**files, "data/img/99.0.0.0": bytes(size)})
    declared, false = size.to_bytes(4, "little"), (100).to_bytes(4, "little")
    assert bomb.count(declared) == 2
    with pytest.raises(DemoError, match="damaged"):
        extract(bomb.replace(declared, false), tmp_path)
    assert sum(map(len, read_files(tmp_path / "store").values())) < size / 2


@pytest.mark.parametrize("content", [b"", b"PK", b"<html></html>", b"PK\x05\x06" + bytes(30)])
def test_other_content_is_rejected(tmp_path, content):
    with pytest.raises(DemoError, match=r"damaged|no zarr store"):
        extract(content, tmp_path)


def test_truncated_archive_is_rejected_at_any_length(files, tmp_path):
    content = zip_files(files)
    for i, size in enumerate(range(0, len(content), len(content) // 40)):
        (tmp_path / str(i)).mkdir()
        with pytest.raises(DemoError):
            extract(content[:size], tmp_path / str(i))
