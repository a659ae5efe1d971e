"""Tests of archives that are downloaded: damaged and malicious ones."""

import stat
import zipfile

import pytest

from nsde_policy.data.download import extract_store
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import INSIDE, read_files, write_store, zip_files

LIMIT = 2**20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return read_files(write_store(tmp_path_factory.mktemp("store") / "demos.zarr"))


def extract(content, folder):
    """Extract an archive and return the files of the store in it."""
    (folder / "archive.zip").write_bytes(content)
    return read_files(extract_store(folder / "archive.zip", folder / "extracted", max_bytes=LIMIT))


def make_member(name, mode):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize("inside", ["", "demos.zarr/", INSIDE])
def test_store_is_found_at_the_top_or_in_a_folder(files, tmp_path, inside):
    found = extract(zip_files(files, inside=inside, extra=[("LICENSE", b"MIT")]), tmp_path)
    assert files.items() <= found.items()


@pytest.mark.parametrize(
    "member",
    [
        "../evil",
        "/tmp/evil",
        INSIDE + "data/../../../../evil",
        "..\\evil",
        "C:evil",
        make_member(INSIDE + "data/link", stat.S_IFLNK | 0o777),
        make_member("pusht/pipe", stat.S_IFIFO | 0o666),
    ],
    ids=lambda member: getattr(member, "filename", member),
)
def test_every_member_becomes_a_plain_file_in_the_folder(files, tmp_path, member):
    found = extract(zip_files(files, extra=[(member, b"/etc/passwd")]), tmp_path)
    assert files.items() <= found.items()
    assert {path.name for path in tmp_path.iterdir()} == {"archive.zip", "extracted"}
    written = [path for path in (tmp_path / "extracted").rglob("*") if not path.is_dir()]
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in written)


def test_zip_bomb_is_rejected_before_extraction(files, tmp_path):
    with pytest.raises(DemoError, match="unpacks to"):
        extract(zip_files({**files, "data/img/99.0.0.0": bytes(LIMIT)}), tmp_path)
    assert not (tmp_path / "extracted").exists()


def test_zip_bomb_with_a_false_size_is_stopped(files, tmp_path):
    size = 1_234_567
    bomb = zip_files({**files, "data/img/99.0.0.0": bytes(size)})
    declared, false = size.to_bytes(4, "little"), (100).to_bytes(4, "little")
    assert bomb.count(declared) == 2
    with pytest.raises(DemoError, match="cannot be extracted"):
        extract(bomb.replace(declared, false), tmp_path)
    assert sum(map(len, read_files(tmp_path / "extracted").values())) < size / 2
