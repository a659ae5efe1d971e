"""Files that are whole or absent, whatever happens."""

import os
from pathlib import Path

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
