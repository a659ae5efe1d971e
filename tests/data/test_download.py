"""Tests for data/download.py, with a local server that misbehaves."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import download as download_module
from nsde_policy.data import load_demonstrations
from nsde_policy.data.download import PublicDemos, download
from nsde_policy.errors import DemoError, NsdePolicyError
from nsde_policy.files import lock_directory
from nsde_policy.tasks import get_task
from tests.helpers.demo_stores import read_files, write_store, zip_files
from tests.helpers.download_server import Site, serve_site

CUT = 10_000
KEPT = 8192
"""Bytes that are kept of a response that ends after `CUT`: whole blocks."""
ANGLES = (4,)


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Replace the waiting time between attempts by a list of them."""
    found = []
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=found.append))
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store") / "demos.zarr")


@pytest.fixture(scope="module")
def demos(store):
    fingerprint = load_demonstrations(store, angles=ANGLES).fingerprint
    return PublicDemos(url="http://127.0.0.1:9/never", fingerprint=fingerprint, angles=ANGLES)


@pytest.fixture
def site(store):
    with serve_site(Site(zip_files(read_files(store)))) as site:
        assert len(site.content) > 2 * CUT
        yield site


@pytest.fixture
def out(tmp_path):
    return tmp_path / "new" / "pusht.zarr"


@pytest.fixture
def public_site(demos, site, monkeypatch):
    """Let the command line download from the local server."""
    served = replace(demos, url=site.url)
    monkeypatch.setattr(type(get_task("pusht").training), "public_demos", property(lambda _: served))
    return site


def check_error(demos, site, out, match, error=NsdePolicyError):
    with pytest.raises(error, match=match) as caught:
        download(demos, out, url=site.url)
    assert "\n" not in str(caught.value)
    assert not out.exists()


# --- Success ---


def test_download_writes_the_store_and_nothing_else(demos, site, out, store):
    assert download(demos, out, url=site.url) is True
    assert read_files(out) == read_files(store)
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def test_existing_store_is_not_downloaded_again(demos, site, out):
    download(demos, out, url=site.url)
    assert download(demos, out, url=site.url) is False
    assert len(site.requested) == 1


def test_empty_folder_is_filled(demos, site, out):
    out.mkdir(parents=True)
    assert download(demos, out, url=site.url) is True
    assert load_demonstrations(out)


def test_files_beside_the_store_are_not_extracted(demos, site, out, store):
    site.content = zip_files(read_files(store), extra=[("pusht/LICENSE", b"MIT"), ("__MACOSX/._x", b"?")])
    download(demos, out, url=site.url)
    assert read_files(out) == read_files(store)


def test_progress_bar_is_shown_on_request(demos, site, out, capsys):
    download(demos, out, url=site.url, progressbar=True)
    assert "100%" in capsys.readouterr().err
    shutil.rmtree(out)
    download(demos, out, url=site.url)
    assert capsys.readouterr() == ("", "")


def test_fingerprint_matches_the_human_demonstrations(human_demos):
    expected = get_task("pusht").training.public_demos
    assert load_demonstrations(human_demos, angles=expected.angles).fingerprint == expected.fingerprint


# --- Broken connections ---


def test_cut_connection_is_resumed(demos, site, out, store):
    site.cuts = [CUT, 1]
    download(demos, out, url=site.url)
    assert site.requested == ["", f"bytes={KEPT}-", f"bytes={KEPT}-"]
    assert read_files(out) == read_files(store)


@pytest.mark.parametrize("behaviour", [{"supports_ranges": False}, {"range_shift": 7}])
def test_download_restarts_without_correct_ranges(demos, site, out, store, behaviour):
    vars(site).update(behaviour, cuts=[CUT])
    download(demos, out, url=site.url)
    assert len(site.requested) in (2, 3)
    assert read_files(out) == read_files(store)


def test_failed_download_is_resumed_by_the_next_call(demos, site, out):
    site.cuts = [CUT, 0, 0, 0]
    check_error(demos, site, out, "cannot be downloaded: .*; run the command again to resume")
    download(demos, out, url=site.url)
    assert site.requested == ["", *[f"bytes={KEPT}-"] * 4]


def test_file_that_changed_on_the_server_is_detected_and_deleted(demos, site, out, store):
    site.content, genuine = bytes(len(site.content)), site.content
    site.cuts = [CUT, 0, 0, 0]
    check_error(demos, site, out, "run the command again")
    site.content = genuine
    check_error(demos, site, out, "the download was deleted", DemoError)
    download(demos, out, url=site.url)
    assert read_files(out) == read_files(store)


def test_partial_file_is_discarded_if_the_server_rejects_its_range(demos, site, out):
    site.cuts = [CUT, 0, 0, 0]
    check_error(demos, site, out, "run the command again")
    site.statuses = [416]
    download(demos, out, url=site.url)
    assert site.requested[-2:] == [f"bytes={KEPT}-", ""]


def test_complete_archive_is_extracted_without_another_request(demos, site, out, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download_module, "extract_store", interrupt)
        with pytest.raises(KeyboardInterrupt):
            download(demos, out, url=site.url)
    assert not out.exists()
    download(demos, out, url=site.url)
    assert len(site.requested) == 1


def test_killed_download_is_resumed(demos, site, out):
    site.cuts, site.stalled = [CUT], threading.Event()
    code = (
        "import sys\nfrom nsde_policy.data.download import PublicDemos, download\n"
        "download(PublicDemos(sys.argv[1], sys.argv[2]), sys.argv[3])"
    )
    command = [sys.executable, "-c", code, site.url, demos.fingerprint, str(out)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        assert site.stalled.wait(60)
        archive = out.with_name(out.name + ".partial") / "archive.zip.partial"
        while not archive.exists() or archive.stat().st_size < KEPT:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    download(demos, out, url=site.url)
    assert site.requested == ["", f"bytes={KEPT}-"]


def test_interrupt_keeps_the_partial_file(demos, public_site, out, monkeypatch, capsys):
    def write_and_interrupt(downloader, chunk):
        downloader._file.write(chunk)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download_module._Downloader, "write", write_and_interrupt)
        assert main(["data", "download", "pusht", "--out", str(out)]) == 130
    assert "run the same command again to resume" in capsys.readouterr().err
    download(demos, out, url=public_site.url)
    assert public_site.requested == ["", f"bytes={KEPT}-"]


# --- Server errors and wrong content ---


@pytest.mark.parametrize("status", [404, 403, 401])
def test_permanent_http_error_fails_at_once_and_leaves_nothing(demos, site, out, status):
    site.statuses = [status]
    check_error(demos, site, out, f"the server says {status}")
    assert len(site.requested) == 1
    assert not any(out.parent.iterdir())


def test_temporary_http_error_is_retried(demos, site, out, waits):
    site.statuses = [503, 429]
    download(demos, out, url=site.url)
    assert waits == [1, 2]


def test_download_fails_after_four_attempts(demos, site, out):
    site.statuses = [503] * 9
    check_error(demos, site, out, "503")
    assert len(site.requested) == 4
    assert not any(out.parent.iterdir())


def test_refused_connection_is_reported_in_one_line(demos, out):
    with serve_site(Site()) as stopped:
        pass
    check_error(demos, stopped, out, "cannot be downloaded: Connection refused$")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "pusht.zip", "http:///x", "http://["])
def test_other_addresses_are_rejected(demos, out, url):
    with pytest.raises(NsdePolicyError, match=r"not a web address|cannot be downloaded"):
        download(demos, out, url=url)


def test_redirect_is_followed_but_not_to_a_file(demos, site, out):
    site.statuses, site.location = [302], site.url
    download(demos, out, url=site.url)
    site.statuses, site.location = [302] * 4, "file:///etc/passwd"
    check_error(demos, site, out.with_name("other"), "No connection adapters")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"<html>not here</html>", "damaged"),
        (b"", "damaged"),
        (zip_files({"readme": b"hello"}), "no zarr store"),
        (zip_files({".zgroup": b'{"zarr_format": 2}'}), "no array 'meta/episode_ends'"),
    ],
)
def test_other_files_are_rejected_and_deleted(demos, site, out, content, match):
    site.content = content
    check_error(demos, site, out, match, DemoError)
    assert not any(out.parent.iterdir())


def test_store_with_other_numbers_is_rejected(demos, site, out, tmp_path):
    other = write_store(tmp_path / "other.zarr", {"data/action": np.zeros((40, 2)) + 0.5})
    site.content = zip_files(read_files(other))
    check_error(demos, site, out, "fingerprint", DemoError)


@pytest.mark.parametrize("link", ["", "store", "archive.zip.partial"])
def test_nothing_behind_a_link_is_changed(demos, site, out, tmp_path, link):
    outside = tmp_path / "outside"
    (outside / "store").mkdir(parents=True)
    (outside / "store/holiday.jpg").write_text("sun")
    work = out.with_name(out.name + ".partial")
    (work / link).parent.mkdir(parents=True, exist_ok=True)
    (work / link).symlink_to(outside)
    check_error(demos, site, out, "is a link or holds one; delete it")
    assert (outside / "store/holiday.jpg").read_text() == "sun"


def test_flipped_bits_are_detected_or_harmless(demos, site, out):
    genuine = site.content
    for at in np.linspace(0, len(genuine) - 1, 60).astype(int):
        site.content = genuine[:at] + bytes([genuine[at] ^ 1]) + genuine[at + 1 :]
        try:
            download(demos, out, url=site.url)
        except NsdePolicyError:
            assert not out.exists()
        else:
            assert load_demonstrations(out, angles=ANGLES).fingerprint == demos.fingerprint
            shutil.rmtree(out)


def test_truncated_response_without_length_is_detected_in_the_archive(demos, site, out):
    site.sends_length, site.cuts = False, [CUT]
    check_error(demos, site, out, "damaged", DemoError)
    download(demos, out, url=site.url)


def test_too_large_archive_is_rejected(demos, site, out):
    small = replace(demos, max_bytes=CUT)
    check_error(small, site, out, f"expected at most {CUT}")
    site.sends_length = False
    check_error(small, site, out, f"more than the {CUT} bytes")
    assert not any(out.parent.iterdir())


# --- Local files ---


@pytest.mark.parametrize("kind", ["file", "folder", "link", "store", "damaged"])
def test_other_content_at_the_target_is_kept(demos, site, tmp_path, store, kind):
    out = tmp_path / "pusht.zarr"
    if kind == "file":
        out.write_text("mine")
    elif kind == "folder":
        (out / "mine").mkdir(parents=True)
    elif kind == "link":
        out.symlink_to(tmp_path / "nowhere")
    elif kind == "store":
        write_store(out, {"data/action": np.ones((40, 2))})
    else:
        shutil.copytree(store, out)
        (out / "data/state/1.0").unlink()
    with pytest.raises(NsdePolicyError, match="exists and has other content"):
        download(demos, out, url=site.url)
    assert os.path.lexists(out)
    assert site.requested == []


def test_too_little_disk_space_is_reported_before_the_download(demos, site, out, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check_error(demos, site, out, "the disk has 1 MB free")
    assert not any(out.parent.iterdir())


def test_full_disk_keeps_the_partial_file(demos, site, out, monkeypatch):
    def write_until_full(downloader, chunk):
        if downloader._file.tell():
            raise OSError(28, "No space left on device")
        return downloader._file.write(chunk)

    with monkeypatch.context() as patch:
        patch.setattr(download_module._Downloader, "write", write_until_full)
        with pytest.raises(NsdePolicyError, match="the disk is full"):
            download(demos, out, url=site.url)
    download(demos, out, url=site.url)
    assert site.requested == ["", f"bytes={KEPT}-"]


def test_unwritable_target_is_reported_in_one_line(demos, site, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoError, match="cannot be created: Not a directory"):
        download(demos, tmp_path / "file" / "pusht.zarr", url=site.url)


def test_second_download_to_the_same_target_is_rejected(demos, site, out):
    lock = lock_directory(out.with_name(out.name + ".partial"))
    check_error(demos, site, out, "another process", DemoError)
    os.close(lock)
    download(demos, out, url=site.url)


@pytest.mark.parametrize("name", [".", ".."])
def test_target_without_a_name_is_rejected(demos, name):
    with pytest.raises(NsdePolicyError, match="not a name"):
        download(demos, name)


# --- Command line ---


@pytest.mark.usefixtures("public_site")
def test_command_prints_where_the_store_is(out, capsys):
    command = ["data", "download", "pusht", "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith(f"OK: {out}")
    assert main(command) == 0
    assert "already there" in capsys.readouterr().out


def test_command_fails_with_status_2_and_one_line(public_site, out, capsys):
    public_site.statuses = [404]
    assert main(["data", "download", "pusht", "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "404" in printed.err
