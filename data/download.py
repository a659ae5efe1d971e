"""Download of public demonstrations, checked against a known fingerprint and installed atomically.

    download(task.training.public_demos, "demos.zarr")

The archive is downloaded and extracted in a temporary folder next to the target. The store is renamed to its
final name only after its content has been checked, so an interrupted download never leaves a partial store.
"""

import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from nsde_policy.errors import DemoError, NsdePolicyError, wrap_read_errors
from nsde_policy.files import PARTIAL

from .readers import load_demonstrations
from .zarr_store.store import ROOT_KEYS

TIMEOUT_S = 30.0
"""Seconds without data after which a connection is closed."""
RETRIES = 3
ARCHIVE = "archive.zip"


@dataclass(frozen=True)
class PublicDemos:
    """A set of demonstrations that can be downloaded."""

    url: str
    """Address of a zip file that holds one zarr store."""
    fingerprint: str
    """`Demonstrations.fingerprint` of the store: SHA-256 of all observations, actions and episode ends."""
    angles: tuple[int, ...] = ()
    """Angle columns of the observation; they are part of the fingerprint."""
    max_bytes: int = 2**30
    """Size limit of the extracted store."""
    frames: int = 0
    """Number of frames; a store with another number is not compared with the fingerprint. 0 if unknown."""


def download(
    public: PublicDemos, out: Path | str, *, url: str | None = None, progressbar: bool = False
) -> bool:
    """Download a store and check its content; failed connections are retried.

    Return False if the expected store was already there; anything else at `out` is left untouched. A mirror
    at `url` must have the same content.

    Raises:
        NsdePolicyError: If the store cannot be downloaded, or `out` has other content.
        DemoError: If the archive is damaged or has other content.
    """
    out, url = Path(out), url or public.url
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        if difference := _find_difference(public, out):
            raise NsdePolicyError(
                f"{out} exists and has other content ({difference}); move it away or choose another --out"
            )
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(PARTIAL, f"{out.name}.", out.parent) as folder:
        archive = _fetch(url, Path(folder), progressbar)
        store = extract_store(archive, Path(folder) / "extracted", max_bytes=public.max_bytes)
        if difference := _find_difference(public, store):
            raise DemoError(f"{url} does not hold the expected demonstrations: {difference}")
        store.rename(out)
    return True


def _fetch(url: str, folder: Path, progressbar: bool) -> Path:
    """Download an archive to a folder and return its path; retry if the connection fails."""
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")  # its INFO messages would interrupt the progress bar
    registry = {ARCHIVE: None}  # no checksum: a mirror may compress the same store differently
    cache = pooch.create(folder, "", registry=registry, urls={ARCHIVE: url}, retry_if_failed=RETRIES)
    http = pooch.HTTPDownloader(progressbar=progressbar, timeout=TIMEOUT_S)
    try:
        return Path(cache.fetch(ARCHIVE, downloader=http))
    except requests.RequestException as error:
        raise NsdePolicyError(f"{url} cannot be downloaded: {error}") from error


def extract_store(archive: Path, folder: Path, *, max_bytes: int) -> Path:
    """Extract an untrusted zip archive to a new folder; return the store in it, or raise `DemoError`.

    zipfile keeps every path inside the folder, writes links as plain files, stops at the declared size of a
    file and compares its checksum.
    """
    with wrap_read_errors("the archive cannot be extracted"), zipfile.ZipFile(archive) as opened:
        size = sum(member.file_size for member in opened.infolist())
        if size > max_bytes:
            raise DemoError(f"the archive unpacks to {size} bytes, expected at most {max_bytes}")
        opened.extractall(folder)
    roots = [file.parent for key in ROOT_KEYS for file in folder.rglob(key)]
    if not roots:
        raise DemoError("the archive holds no zarr store: neither .zgroup nor zarr.json is in it")
    return min(roots, key=lambda root: len(root.parts))


def _find_difference(public: PublicDemos, store: Path) -> str | None:
    """Return what is wrong with a store, None if every number is as expected."""
    try:
        fingerprint = load_demonstrations(store, angles=public.angles).fingerprint
    except DemoError as error:
        return str(error)
    if fingerprint != public.fingerprint:
        return f"its content has the fingerprint {fingerprint[:12]}…, expected {public.fingerprint[:12]}…"
    return None
