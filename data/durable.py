"""Files that are whole or absent, whatever happens, and a directory that one process writes at a time."""

import os
from pathlib import Path

from nsde_policy.errors import NotAStoreError, StoreBusyError

PARTIAL = ".partial"
"""Ending of files that are not whole yet."""


def replace_file(target: Path, content: bytes) -> None:
    """Give `target` new content in one step: written aside, flushed to the disk, renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + PARTIAL)
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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
        raise StoreBusyError(
            f"another writer is recording to {path}; close it or choose a new path"
        ) from error
    return directory
