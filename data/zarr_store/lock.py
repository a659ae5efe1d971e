"""A directory that one process writes at a time."""

import os
from pathlib import Path

from nsde_policy.errors import NotAStoreError, StoreLockedError


def lock_directory(path: Path) -> int:
    """Create and lock a directory; the lock ends with `os.close`, or with the process, however it dies."""
    import fcntl

    try:
        path.mkdir(parents=True, exist_ok=True)
        directory = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise NotAStoreError(f"{path} cannot become a recording: {error.strerror}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(directory)
        raise StoreLockedError(
            f"another writer is recording to {path}; close it or choose a new path"
        ) from error
    return directory
