"""Tests for data/download.py, with a local server that misbehaves."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.data.download import PublicDemos, download
from nsde_policy.errors import DemoError, NsdePolicyError
from nsde_policy.tasks import get_task
from tests.helpers.demo_stores import read_files, write_store, zip_files
from tests.helpers.download_server import Site, serve_site

ANGLES = (4,)


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Replace the waiting time between attempts by a list of them."""
    seconds = []
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=seconds.append))
    return seconds


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store") / "demos.zarr")


@pytest.fixture(scope="module")
def public(store):
    fingerprint = load_demonstrations(store, angles=ANGLES).fingerprint
    return PublicDemos(url="http://127.0.0.1:9/never", fingerprint=fingerprint, angles=ANGLES)


@pytest.fixture
def site(store):
    with serve_site(Site(zip_files(read_files(store)))) as site:
        yield site


@pytest.fixture
def out(tmp_path):
    return tmp_path / "new" / "pusht.zarr.zip"


def check_error(public, url, out, match, error=NsdePolicyError):
    """Check that a download fails and leaves nothing behind."""
    with pytest.raises(error, match=match) as caught:
        download(public, out, url=url)
    assert "\n" not in str(caught.value)
    assert not any(out.parent.iterdir())


def test_download_writes_the_zip_and_nothing_else_and_only_once(public, site, out, store, capsys):
    assert download(public, out, url=site.url) is True
    assert out.read_bytes() == site.content
    assert load_demonstrations(out).fingerprint == load_demonstrations(store).fingerprint
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert download(public, out, url=site.url) is False
    assert site.requests == 1
    assert capsys.readouterr() == ("", "")


def test_fingerprint_matches_the_human_demonstrations(human_demos):
    expected = get_task("pusht").training.public_demos
    assert load_demonstrations(human_demos, angles=expected.angles).fingerprint == expected.fingerprint


def test_failed_connections_are_retried(public, site, out, waits):
    site.cuts = [10_000, 0]
    assert download(public, out, url=site.url) is True
    assert waits == [1, 2]
    site.statuses = [404] * 9
    check_error(public, site.url, out.with_name("other") / "pusht.zarr", "cannot be downloaded: 404")
    assert site.requests == 3 + 4


@pytest.mark.parametrize("url", ["file:///etc/passwd", "pusht.zip"])
def test_other_addresses_are_rejected(public, out, url):
    check_error(public, url, out, "cannot be downloaded")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"<html>not here</html>", "undamaged zip"),
        (zip_files({"readme": b"hello"}), "not a zarr group"),
        (zip_files({".zgroup": b'{"zarr_format": 2}'}), "no array 'meta/episode_ends'"),
        (lambda folder: write_store(folder, {"data/action": np.zeros((40, 2)) + 0.5}), "fingerprint"),
    ],
)
def test_other_content_is_rejected(public, site, out, tmp_path, content, match):
    if callable(content):
        content = zip_files(read_files(content(tmp_path / "other.zarr")))
    site.content = content
    check_error(public, site.url, out, match, DemoError)


def test_other_content_at_the_target_is_kept(public, site, tmp_path):
    out = write_store(tmp_path / "pusht.zarr", {"data/action": np.ones((40, 2))})
    before = read_files(out)
    with pytest.raises(NsdePolicyError, match="exists and has other content"):
        download(public, out, url=site.url)
    assert read_files(out) == before
    assert site.requests == 0


def test_command_says_what_happened(public, site, out, monkeypatch, capsys):
    served = replace(public, url=site.url)
    monkeypatch.setattr(type(get_task("pusht").training), "public_demos", property(lambda _: served))
    command = ["data", "download", "pusht", "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith(f"OK: {out}")
    assert main(command) == 0
    assert "already there" in capsys.readouterr().out
    out.unlink()
    site.statuses = [404] * 4
    assert main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1
