"""Download of public demonstrations, checked against a known fingerprint and installed atomically.

    download(task.training.public_demos, "demos.zarr.zip")

The zip is read as it is, without unpacking it. It is downloaded into a temporary folder next to the target,
and gets its final name only after its content has been checked.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from nsde_policy.errors import DemoError, NsdePolicyError
from nsde_policy.files import publish_complete

from .readers import load_demonstrations

TIMEOUT_S = 30.0
"""Seconds without data after which a connection is closed."""
RETRIES = 3


@dataclass(frozen=True)
class PublicDemos:
    """A set of demonstrations that can be downloaded."""

    url: str
    """Address of a zip file that holds one zarr store."""
    fingerprint: str
    """`Demonstrations.fingerprint` of the store: SHA-256 of all observations, actions and episode ends."""
    angles: tuple[int, ...] = ()
    """Angle columns of the observation; they are part of the fingerprint."""
    frames: int = 0
    """Number of frames; a store with another number is not compared with the fingerprint. 0 if unknown."""


def download(
    public: PublicDemos, out: Path | str, *, url: str | None = None, progressbar: bool = False
) -> bool:
    """Download a zip of a store and check its content; failed connections are retried.

    Return False if the expected store was already there; anything else at `out` is left untouched. A mirror
    at `url` must have the same content.

    Raises:
        NsdePolicyError: If the store cannot be downloaded, or `out` has other content.
        DemoError: If the archive is damaged or has other content.
    """
    out, url = Path(out), url or public.url
    if os.path.lexists(out):
        if difference := _find_difference(public, out):
            raise NsdePolicyError(
                f"{out} exists and has other content ({difference}); move it away or choose another --out"
            )
        return False
    with publish_complete(out) as archive:
        _fetch(url, archive, progressbar)
        if difference := _find_difference(public, archive):
            raise DemoError(f"{url} does not hold the expected demonstrations: {difference}")
    return True


def _fetch(url: str, archive: Path, progressbar: bool) -> None:
    """Download an archive; retry if the connection fails."""
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")  # its INFO messages would interrupt the progress bar
    name = archive.name
    registry = {name: None}  # no checksum: a mirror may compress the same store differently
    cache = pooch.create(archive.parent, "", registry=registry, urls={name: url}, retry_if_failed=RETRIES)
    http = pooch.HTTPDownloader(progressbar=progressbar, timeout=TIMEOUT_S)
    try:
        cache.fetch(name, downloader=http)
    except requests.RequestException as error:
        raise NsdePolicyError(f"{url} cannot be downloaded: {error}") from error


def _find_difference(public: PublicDemos, store: Path) -> str | None:
    """Return what is wrong with a store, None if every number is as expected."""
    try:
        fingerprint = load_demonstrations(store, angles=public.angles).fingerprint
    except DemoError as error:
        return str(error)
    if fingerprint != public.fingerprint:
        return f"its content has the fingerprint {fingerprint[:12]}…, expected {public.fingerprint[:12]}…"
    return None
