"""Tests for data/download.py and data/fetch.py, against a server on this machine that misbehaves."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import PUSHT_ANGLES, load_demonstrations
from nsde_policy.data import download as download_module
from nsde_policy.data.download import PUSHT, Source, download
from nsde_policy.data.zarr_store.lock import lock_directory
from nsde_policy.errors import ArchiveError, DownloadError
from tests.helpers.demo_stores import files_of, packed, write_store
from tests.helpers.download_server import Site, serving

CUT = 10_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store") / "demos.zarr")


@pytest.fixture(scope="module")
def source(store):
    fingerprint = load_demonstrations(store, angles=PUSHT_ANGLES).fingerprint
    return Source(url="http://127.0.0.1:9/never", fingerprint=fingerprint, angles=PUSHT_ANGLES)


@pytest.fixture
def site(store):
    with serving(Site(packed(files_of(store)))) as site:
        assert len(site.content) > 2 * CUT
        yield site


@pytest.fixture
def out(tmp_path):
    return tmp_path / "new" / "pusht.zarr"


def get(source, site, out, **options):
    return download(source, out, url=site.url, sleep=lambda _: None, **options)


def refused(source, site, out, match, error=DownloadError):
    with pytest.raises(error, match=match) as caught:
        get(source, site, out)
    assert "\n" not in str(caught.value)
    assert not out.exists()


# --- The way through ---


def test_the_store_arrives_file_by_file_and_nothing_else_is_left(source, site, out, store):
    assert get(source, site, out) is True
    assert files_of(out) == files_of(store)
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def test_a_store_that_is_there_is_kept_without_asking_anybody(source, site, out):
    get(source, site, out)
    assert get(source, site, out) is False
    assert len(site.asked) == 1


def test_an_empty_folder_is_filled(source, site, out):
    out.mkdir(parents=True)
    assert get(source, site, out) is True
    assert load_demonstrations(out)


def test_files_beside_the_store_stay_in_the_archive(source, site, out, store):
    site.content = packed(files_of(store), extra=[("pusht/LICENSE", b"MIT"), ("__MACOSX/._x", b"?")])
    get(source, site, out)
    assert files_of(out) == files_of(store)


def test_every_byte_that_arrives_is_told_once(source, site, out):
    site.cuts = [CUT]
    told = []

    @contextmanager
    def bar(total, done):
        told.append((total, done, counted := [0]))
        yield type("Bar", (), {"update": lambda _, n: counted.__setitem__(0, counted[0] + n)})()

    get(source, site, out, progress=bar)
    size = len(site.content)
    assert told == [(size, 0, [CUT]), (size, CUT, [size - CUT])]


def test_the_fingerprint_is_that_of_the_human_demonstrations(human_demos):
    assert load_demonstrations(human_demos, angles=PUSHT_ANGLES).fingerprint == PUSHT.fingerprint


# --- Broken connections ---


@pytest.mark.parametrize("headers", [{"ETag": '"1"'}, {"Last-Modified": "Tue, 1 Jul 2025 00:00:00 GMT"}])
def test_a_cut_connection_is_gone_on_from(source, site, out, store, headers):
    site.headers, site.cuts = headers, [CUT, 1]
    get(source, site, out)
    assert site.asked == ["", f"bytes={CUT}-", f"bytes={CUT + 1}-"]
    assert files_of(out) == files_of(store)


@pytest.mark.parametrize(
    "how", [{"ranges": False}, {"headers": {}}, {"headers": {"ETag": 'W/"1"'}}, {"shift": 7}]
)
def test_without_trustworthy_parts_the_download_starts_afresh(source, site, out, store, how):
    vars(site).update(how, cuts=[CUT])
    get(source, site, out)
    assert len(site.asked) in (2, 3)
    assert files_of(out) == files_of(store)


def test_a_connection_that_keeps_breaking_is_given_up_and_gone_on_from_later(source, site, out):
    site.cuts = [CUT, 0, 0, 0]
    refused(source, site, out, f"ended after {CUT} of {len(site.content)} bytes; run it again")
    get(source, site, out)
    assert site.asked == ["", *[f"bytes={CUT}-"] * 4]


def test_a_file_that_changed_meanwhile_is_fetched_whole(source, site, out, store):
    site.content, genuine = bytes(len(site.content)), site.content
    site.cuts = [CUT, 0, 0, 0]
    refused(source, site, out, "ended after")
    site.content, site.headers = genuine, {"ETag": '"2"'}
    get(source, site, out)
    assert files_of(out) == files_of(store)


def test_a_part_that_the_server_does_not_have_any_more_is_dropped(source, site, out):
    site.cuts, site.statuses = [CUT, 0, 0, 0], []
    refused(source, site, out, "ended after")
    site.statuses = [416]
    get(source, site, out)
    assert site.asked[-2:] == [f"bytes={CUT}-", ""]


def test_what_was_fetched_whole_is_unpacked_without_asking_again(source, site, out, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(download_module, "unpack_store", interrupt)
    with pytest.raises(KeyboardInterrupt):
        get(source, site, out)
    assert not out.exists()
    monkeypatch.undo()
    get(source, site, out)
    assert len(site.asked) == 1


def test_a_killed_download_leaves_no_store_and_is_gone_on_from(source, site, out):
    site.cuts, site.stall = [CUT], threading.Event()
    code = (
        "import sys\nfrom nsde_policy.data.download import Source, download\n"
        "download(Source(sys.argv[1], sys.argv[2]), sys.argv[3])"
    )
    command = [sys.executable, "-c", code, site.url, source.fingerprint, str(out)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        assert site.stall.wait(60)
        archive = out.with_name(out.name + ".partial") / "archive.zip"
        while not archive.exists() or archive.stat().st_size < CUT:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    get(source, site, out)
    assert site.asked == ["", f"bytes={CUT}-"]


def test_ctrl_c_keeps_what_has_arrived(source, site, out, monkeypatch, capsys):
    monkeypatch.setattr(download_module, "PUSHT", source)
    monkeypatch.setattr("nsde_policy.data.fetch._read", interrupted_after(CUT))
    command = ["data", "download", "pusht", "--out", str(out), "--url", site.url]
    assert main(command) == 130
    assert "goes on where this one stopped" in capsys.readouterr().err
    monkeypatch.undo()
    get(source, site, out)
    assert site.asked == ["", f"bytes={CUT}-"]


def interrupted_after(size):
    """Read `size` bytes of an answer, and no more."""
    blocks = []

    def read(answer):
        if blocks:
            raise KeyboardInterrupt
        blocks.append(answer.read(size))
        return blocks[0]

    return read


# --- Servers that have nothing, or something else ---


@pytest.mark.parametrize("status", [404, 403, 401])
def test_what_is_not_there_is_said_at_once_and_leaves_nothing(source, site, out, status):
    site.statuses = [status]
    refused(source, site, out, f"the server says {status}")
    assert len(site.asked) == 1
    assert not any(out.parent.iterdir())


def test_a_busy_server_is_asked_again(source, site, out):
    site.statuses = [503, 429]
    waited = []
    download(source, out, url=site.url, sleep=waited.append)
    assert waited == [1, 2]


def test_a_server_that_stays_busy_is_given_up(source, site, out):
    site.statuses = [503] * 9
    refused(source, site, out, "503")
    assert len(site.asked) == 4


def test_nobody_listening_is_one_line(source, site, out):
    with serving(Site()) as gone:
        pass
    refused(source, gone, out, "Connection refused")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "pusht.zip", "http:///x", "http://[", ""])
def test_other_addresses_are_refused(source, out, url):
    with pytest.raises(DownloadError, match=r"no address|cannot be downloaded"):
        download(source, out, url=url, sleep=lambda _: None)


def test_a_redirection_is_followed_but_not_to_a_file(source, site, out):
    site.statuses, site.location = [302], site.url
    get(source, site, out)
    site.statuses, site.location = [302], "file:///etc/passwd"
    refused(source, site, out.with_name("other"), "302")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"<html>not here</html>", "damaged"),
        (b"", "damaged"),
        (packed({"readme": b"hello"}), "no zarr store"),
        (packed({".zgroup": b'{"zarr_format": 2}'}), "no array 'meta/episode_ends'"),
    ],
)
def test_something_else_is_refused_and_dropped(source, site, out, content, match):
    site.content = content
    refused(source, site, out, match, ArchiveError)
    assert not any(out.parent.iterdir())


def test_other_numbers_are_refused(source, site, out, tmp_path):
    other = write_store(tmp_path / "other.zarr", {"data/action": np.zeros((40, 2)) + 0.5})
    site.content = packed(files_of(other))
    refused(source, site, out, "fingerprint", ArchiveError)


def test_an_archive_that_reaches_outside_writes_nothing(source, site, out, store):
    site.content = packed(files_of(store), extra=[("../../evil", b"")])
    refused(source, site, out, "lead outside", ArchiveError)
    assert not any(out.parent.iterdir())


def test_a_flipped_bit_anywhere_is_noticed_or_harmless(source, site, out, store):
    genuine = site.content
    for at in np.linspace(0, len(genuine) - 1, 60).astype(int):
        site.content = genuine[:at] + bytes([genuine[at] ^ 1]) + genuine[at + 1 :]
        try:
            get(source, site, out)
        except DownloadError:
            assert not out.exists()
        else:
            assert load_demonstrations(out, angles=PUSHT_ANGLES).fingerprint == source.fingerprint
            shutil.rmtree(out)


def test_a_cut_that_nobody_can_see_is_noticed_in_the_archive(source, site, out):
    site.says_length, site.cuts = False, [CUT]
    refused(source, site, out, "damaged", ArchiveError)
    get(source, site, out)


def test_an_archive_too_large_is_refused_before_it_is_read(source, site, out):
    small = replace(source, max_bytes=CUT)
    refused(small, site, out, f"expected at most {CUT}")
    site.says_length = False
    refused(small, site, out, "more bytes")


# --- This machine ---


@pytest.mark.parametrize("what", ["file", "folder", "link", "store", "damaged"])
def test_something_else_at_the_target_is_refused_and_kept(source, site, tmp_path, store, what):
    out = tmp_path / "pusht.zarr"
    if what == "file":
        out.write_text("mine")
    elif what == "folder":
        (out / "mine").mkdir(parents=True)
    elif what == "link":
        out.symlink_to(tmp_path / "nowhere")
    elif what == "store":
        write_store(out, {"data/action": np.ones((40, 2))})
    else:
        shutil.copytree(store, out)
        (out / "data/state/1.0").unlink()
    with pytest.raises(DownloadError, match="exists and is something else"):
        get(source, site, out)
    assert os.path.lexists(out)
    assert site.asked == []


def test_a_disk_too_small_is_said_before_anything_arrives(source, site, out, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    refused(source, site, out, "the disk has 1 MB free")


def test_a_disk_that_fills_up_keeps_what_has_arrived(source, site, out):
    @contextmanager
    def full(total, done):
        yield type("Bar", (), {"update": lambda *_: exec("raise OSError(28, 'No space left')")})()

    with pytest.raises(DownloadError, match="the disk is full"):
        get(source, site, out, progress=full)
    get(source, site, out)


def test_a_folder_that_cannot_be_written_is_one_line(source, site, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="Not a directory"):
        get(source, site, tmp_path / "file" / "pusht.zarr")


def test_two_downloads_do_not_mix(source, site, out):
    lock = lock_directory(out.with_name(out.name + ".partial"))
    refused(source, site, out, "another process")
    os.close(lock)
    get(source, site, out)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_place_without_a_name_is_refused(source, name):
    with pytest.raises(DownloadError, match="no name"):
        download(source, name)


def test_the_command_says_where_the_store_is(source, site, out, monkeypatch, capsys):
    monkeypatch.setattr(download_module, "PUSHT", replace(source, url=site.url))
    command = ["data", "download", "pusht", "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith(f"OK: {out}")
    assert main(command) == 0
    assert "already there" in capsys.readouterr().out


def test_the_command_fails_with_2_and_one_line(source, site, out, monkeypatch, capsys):
    monkeypatch.setattr(download_module, "PUSHT", replace(source, url=site.url))
    site.statuses = [404]
    assert main(["data", "download", "pusht", "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "404" in said.err
