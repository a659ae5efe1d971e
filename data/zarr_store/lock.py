"""Lock that lets one process at a time write to a directory."""

import os
from pathlib import Path

from nsde_policy.errors import NotAStoreError, StoreLockedError


def lock_directory(path: Path) -> int:
    """Create and lock a directory; `os.close` of the returned descriptor, or a crash, releases the lock."""
    import fcntl

    try:
        path.mkdir(parents=True, exist_ok=True)
        directory = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise NotAStoreError(f"the folder {path} cannot be created: {error.strerror}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(directory)
        raise StoreLockedError(
            f"another process is writing to {path}; wait for it to finish or choose another path"
        ) from error
    return directory
