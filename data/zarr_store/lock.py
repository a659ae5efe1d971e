"""Lock that lets one process at a time write to a directory."""

import os
from pathlib import Path

from nsde_policy.errors import NotAStoreError, StoreLockedError


def lock_directory(path: Path) -> int:
    """Create and lock a directory.

    Returns:
        A file descriptor; the lock is released by `os.close`, or when the process ends for any reason.

    Raises:
        StoreLockedError: If another process holds the lock.
        NotAStoreError: If the directory cannot be created.
    """
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
