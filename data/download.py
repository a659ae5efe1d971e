"""Download of public demonstrations: resumable, checked against a known fingerprint, installed atomically.

    download(task.training.public_demos, "demos.zarr")

The archive is downloaded and extracted in a folder beside the target. The store is renamed to its final name
only after its content has been checked, so an interrupted download never leaves a partial store there.
"""

import errno
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pooch
import requests

from nsde_policy.data.readers import load_demonstrations
from nsde_policy.data.zarr_store.archive import extract_store
from nsde_policy.errors import DemoError, NsdePolicyError
from nsde_policy.files import PARTIAL, lock_directory

SPARE_BYTES = 16 * 2**20
"""Space that must stay free on the disk."""
TIMEOUT_S = 30.0
"""Seconds without data after which a connection is closed."""
RETRIES = 3
RETRIED_STATUSES = {408, 416, 425, 429, 500, 502, 503, 504}
"""HTTP statuses that may be temporary; 416 means that the partial file does not match the server's."""


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
    """Size limit of the archive and of the extracted store."""
    frames: int = 0
    """Number of frames; a store with another number is not compared with the fingerprint. 0 if unknown."""


def download(
    demos: PublicDemos, out: Path | str, *, url: str | None = None, progressbar: bool = False
) -> bool:
    """Download a store and check its content; a partial download is resumed.

    Args:
        demos: The demonstrations.
        out: Zarr directory to create; anything else that exists there is left untouched.
        url: Mirror to download from; the content must be the same.
        progressbar: Show a progress bar on standard error.

    Returns:
        False if the expected store was already there.

    Raises:
        NsdePolicyError: If the store cannot be downloaded, does not fit on the disk or has other content.
        DemoError: If another process is downloading to `out`, or its folder cannot be created.
    """
    out = Path(out)
    try:
        if out.name in ("", ".."):
            raise NsdePolicyError(f"{out} is not a name for a store; give one, such as demos.zarr")
        if _is_installed(demos, out):
            return False
        work = out.with_name(out.name + PARTIAL)
        lock = lock_directory(work)
        try:
            if any(path.is_symlink() for path in (work, *work.iterdir())):
                raise NsdePolicyError(f"{work} is a link or holds one; delete it or choose another --out")
            _install(demos, url or demos.url, out, work, progressbar)
        finally:
            with suppress(OSError):
                work.rmdir()  # only succeeds if nothing has arrived
            os.close(lock)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            message = f"the disk is full; free space for {out} and run the command again to resume"
        else:
            message = f"{error.filename or out} cannot be written: {error.strerror or error}"
        raise NsdePolicyError(message) from error
    return True


def _install(demos: PublicDemos, url: str, out: Path, work: Path, progressbar: bool) -> None:
    """Download to `work`, extract, check and rename to `out`."""
    store = work / "store"
    archive = _Downloader(url, work, demos.max_bytes, progressbar).fetch()
    shutil.rmtree(store, ignore_errors=True)  # left behind by a killed process
    store.mkdir()
    try:
        extract_store(
            archive, store, max_bytes=demos.max_bytes, check_space=lambda size: _check_space(work, size)
        )
        if difference := _find_difference(demos, store):
            raise DemoError(difference)
    except DemoError as error:
        shutil.rmtree(work)
        raise DemoError(
            f"{url} does not hold the expected demonstrations: {error}; the download was deleted"
        ) from error
    except BaseException:
        shutil.rmtree(store, ignore_errors=True)
        raise
    store.rename(out)
    shutil.rmtree(work)


class _Downloader:
    """Downloader for pooch that resumes a partial file and limits its size.

    pooch retries failed attempts and deletes its temporary file after each, so the bytes are collected in
    `archive.zip.partial`. The content of the archive is checked after extraction, which also finds a partial
    file that was resumed from a changed archive.
    """

    def __init__(self, url: str, work: Path, max_bytes: int, progressbar: bool) -> None:
        self._url, self._work, self._max_bytes, self._progressbar = url, work, max_bytes, progressbar
        self._partial = work / f"archive.zip{PARTIAL}"
        self._total: int | None = None
        self._file: BinaryIO

    def fetch(self) -> Path:
        """Download the archive, or return the one that was downloaded completely before."""
        if not re.match(r"https?://[^/]", self._url, re.IGNORECASE):
            raise NsdePolicyError(f"{self._url!r} is not a web address; expected http:// or https://")
        pooch.get_logger().setLevel("WARNING")  # its INFO messages would interrupt the progress bar
        registry = {"archive.zip": None}  # a mirror may compress the same store differently
        cache = pooch.create(
            self._work, "", registry=registry, urls={"archive.zip": self._url}, retry_if_failed=RETRIES
        )
        try:
            return Path(cache.fetch("archive.zip", downloader=self))
        except requests.RequestException as error:
            hint = "; run the command again to resume" if self._partial.stat().st_size else ""
            raise NsdePolicyError(f"{self._url} cannot be downloaded: {_find_reason(error)}{hint}") from error
        finally:
            if self._partial.exists() and not self._partial.stat().st_size:
                self._partial.unlink()

    def __call__(self, url: str, output_file: str, pooch_instance: object) -> None:
        with self._partial.open("ab") as self._file:
            start = self._file.tell()
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
            request = pooch.HTTPDownloader(
                progressbar=self._progressbar,
                chunk_size=2**13,
                headers=headers,
                timeout=TIMEOUT_S,
                hooks={"response": self._check_response},
            )
            request(url, self, pooch_instance)
            if self._total is not None and self._file.tell() < self._total:
                raise requests.ConnectionError(f"the connection ended after {self._file.tell()} bytes")
        self._partial.replace(output_file)

    def _check_response(self, response: requests.Response, **_: object) -> None:
        if response.is_redirect:
            return
        if not response.ok and response.status_code not in RETRIED_STATUSES:
            raise NsdePolicyError(
                f"{self._url} cannot be downloaded: the server says {response.status_code} {response.reason}"
            )
        start = self._file.tell()
        content_range = response.headers.get("Content-Range", "")
        if response.status_code == 206 and not content_range.startswith(f"bytes {start}-"):
            self._discard()
            raise requests.ConnectionError(f"the server sent {content_range!r}, expected bytes from {start}")
        if response.status_code in (200, 416):  # the server sends the complete file, or has another one
            self._discard()
            start = 0
        length = response.headers.get("Content-Length", "")
        self._total = start + int(length) if response.ok and length.isdecimal() else None
        if (self._total or 0) > self._max_bytes:
            self._discard()
            raise NsdePolicyError(f"{self._url} has {self._total} bytes, expected at most {self._max_bytes}")
        _check_space(self._work, (self._total or start) - start)

    def _discard(self) -> None:
        self._file.seek(0)
        self._file.truncate()

    def write(self, chunk: bytes) -> int:
        if self._file.tell() + len(chunk) > self._max_bytes:
            self._discard()
            raise NsdePolicyError(f"{self._url} sends more than the {self._max_bytes} bytes expected")
        return self._file.write(chunk)

    def flush(self) -> None:
        self._file.flush()


def _find_reason(error: BaseException) -> str:
    """Return the message of the innermost error: requests wraps the system's error several times."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _check_space(folder: Path, size: int) -> None:
    free, needed = shutil.disk_usage(folder).free, size + SPARE_BYTES
    if free < needed:
        raise NsdePolicyError(
            f"the disk has {free / 2**20:.0f} MB free, {folder} needs {needed / 2**20:.0f} MB; free space"
        )


def _is_installed(demos: PublicDemos, out: Path) -> bool:
    """Return whether the expected store is at `out`; raise if anything but an empty folder is there."""
    if not os.path.lexists(out) or (out.is_dir() and not out.is_symlink() and not any(out.iterdir())):
        return False
    if difference := _find_difference(demos, out):
        raise NsdePolicyError(
            f"{out} exists and has other content ({difference}); move it away or choose another --out"
        )
    return True


def _find_difference(demos: PublicDemos, store: Path) -> str | None:
    """Return what is wrong with a store, None if every number is as expected."""
    try:
        found = load_demonstrations(store, angles=demos.angles).fingerprint
    except DemoError as error:
        return str(error)
    if found != demos.fingerprint:
        return f"its content has the fingerprint {found[:12]}…, expected {demos.fingerprint[:12]}…"
    return None
