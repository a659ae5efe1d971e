"""Files that are whole or absent, whatever happens."""

import os
from pathlib import Path

from nsde_policy.errors import OutputError

PARTIAL = ".partial"
"""Ending of files that are not whole yet."""


def replace_file(target: Path, content: bytes) -> None:
    """Give `target` new content in one step: written aside, flushed to the disk, renamed."""
    check_writable(target)
    partial = target.with_name(target.name + PARTIAL)
    try:
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
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror}") from error


def check_writable(target: Path) -> None:
    """Make the folder of a file that is to be written; refuse what cannot become a file, before the work."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror}") from error
    if target.is_dir():
        raise OutputError(f"{target} cannot be written: it is a folder")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"{target} cannot be written: permission denied")
