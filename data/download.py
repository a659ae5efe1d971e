"""Public demonstrations, fetched from where their authors keep them, and checked number by number.

    download(PUSHT, "pusht_cchi_v7_replay.zarr")

The way is: a partial download in a folder beside the target, an unpacked store in the same folder, a
check of its content, one rename. So a store that stands under its name is whole, however the process
ended; and what has arrived of a broken download is gone on from by the next call.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nsde_policy.data.fetch import Progress, fetch, no_progress
from nsde_policy.data.readers import load_demonstrations
from nsde_policy.data.zarr_store.lock import lock_directory
from nsde_policy.data.zarr_store.store import PUSHT_ANGLES
from nsde_policy.data.zarr_store.unpack import unpack_store
from nsde_policy.errors import ArchiveError, DemoError, DownloadError, NotAStoreError, StoreLockedError
from nsde_policy.files import PARTIAL

SPARE_BYTES = 16 * 2**20
"""Room that must be left on the disk."""


@dataclass(frozen=True)
class Source:
    """A set of demonstrations that can be downloaded."""

    url: str
    """A zip file with one zarr store in it."""
    fingerprint: str
    """`Demonstrations.fingerprint` of the store: every observation, action and episode end."""
    angles: tuple[int, ...] = ()
    """Columns of the observation that are angles; they are part of the fingerprint."""
    max_bytes: int = 2**30
    """Largest archive, and largest store, that is believed."""


PUSHT = Source(
    url="https://diffusion-policy.cs.columbia.edu/data/training/pusht.zip",
    fingerprint="a98719ddbca719f849bae2e010cd285d84124c955a00f22c862dfe7ba73778a7",
    angles=PUSHT_ANGLES,
    max_bytes=256 * 2**20,
)
"""206 human demonstrations of Push-T (Chi et al., RSS 2023; MIT licence); 32 MB."""


def download(
    source: Source,
    out: Path | str,
    *,
    url: str | None = None,
    progress: Progress = no_progress,
    sleep: Callable[[float], object] = time.sleep,
) -> bool:
    """Make `out` the store of `source`; False where it was there already, and whole.

    Args:
        source: what to fetch.
        out: the zarr directory to make. Anything else that stands there is refused and kept.
        url: a mirror to fetch from; the content must be the same.
        progress: opens a bar for the bytes that arrive.
        sleep: waits between attempts.
    """
    out = Path(out)
    try:
        if out.name in ("", ".."):
            raise DownloadError(f"{out} is no name for a store; give one, such as pusht.zarr")
        if _is_there(source, out):
            return False
        work = out.with_name(out.name + PARTIAL)
        lock = _lock(work)
        try:
            _fetch_and_unpack(source, source.url if url is None else url, out, work, progress, sleep)
        finally:
            with suppress(OSError):
                work.rmdir()  # where nothing has arrived
            os.close(lock)
    except OSError as error:
        raise DownloadError(_said(error, out)) from error
    return True


def _fetch_and_unpack(
    source: Source,
    url: str,
    out: Path,
    work: Path,
    progress: Progress,
    sleep: Callable[[float], object],
) -> None:
    def check_space(needed: int) -> None:
        free, needed = shutil.disk_usage(work).free, needed + SPARE_BYTES
        if free < needed:
            found, expected = _megabytes(free), _megabytes(needed)
            raise DownloadError(f"the disk has {found} free, {out} needs {expected}; make room")

    archive, store = work / "archive.zip", work / "store"
    fetch(
        url,
        archive,
        limit=source.max_bytes,
        check_space=check_space,
        progress=progress,
        sleep=sleep,
    )
    shutil.rmtree(store, ignore_errors=True)  # what a killed run left
    store.mkdir()
    try:
        unpack_store(archive, store, limit=source.max_bytes, check_space=check_space)
        if found := _difference(source, store):
            raise ArchiveError(found)
    except ArchiveError as error:
        shutil.rmtree(work)
        raise ArchiveError(f"{url} does not hold the demonstrations: {error}; nothing was kept") from error
    except BaseException:
        shutil.rmtree(store, ignore_errors=True)
        raise
    store.rename(out)
    shutil.rmtree(work)


def _is_there(source: Source, out: Path) -> bool:
    """Whether the store is already at `out`; anything else there is refused, but for an empty folder."""
    if not os.path.lexists(out) or (out.is_dir() and not out.is_symlink() and not any(out.iterdir())):
        return False
    if found := _difference(source, out):
        raise DownloadError(
            f"{out} exists and is something else ({found}); move it away, or choose another place with --out"
        )
    return True


def _difference(source: Source, store: Path) -> str | None:
    """What is wrong with a store; None where every number is as expected."""
    try:
        found = load_demonstrations(store, angles=source.angles).fingerprint
    except DemoError as error:
        return str(error)
    if found != source.fingerprint:
        return f"its content has the fingerprint {found[:12]}…, expected {source.fingerprint[:12]}…"
    return None


def _lock(work: Path) -> int:
    try:
        return lock_directory(work)
    except StoreLockedError as error:
        raise DownloadError(f"another process is downloading to {work}; wait for it") from error
    except NotAStoreError as error:
        why = getattr(error.__cause__, "strerror", None) or error
        raise DownloadError(f"{work} cannot be made, to download to: {why}") from error


def _said(error: OSError, out: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"the disk is full; what has arrived is kept: make room for {out} and run it again"
    return f"{error.filename or out} cannot be written: {error.strerror or error}"


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.0f} MB"
