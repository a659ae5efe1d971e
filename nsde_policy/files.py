"""Read JSON files without trusting them, write files atomically, and lock directories."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from nsde_policy.errors import NotAStoreError, NsdePolicyError, OutputError, StoreLockedError

PARTIAL = ".partial"
"""Suffix of files that are still being written."""
MAX_JSON_BYTES = 64 * 2**20
"""Largest JSON file that `read_json` loads, unless the caller gives another limit."""


def read_json(path: Path, *, error: type[NsdePolicyError], max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object from a file that may be missing, damaged or hostile.

    Args:
        path: A regular file; pipes and devices are rejected, so that reading never blocks.
        error: Exception class to raise; its message names the file and what is wrong with it.
        max_bytes: Size limit of the file.

    Raises:
        error: If the file cannot be read, is too large or does not hold a JSON object.
    """
    return parse_json(read_file(path, max_bytes, error=error), name=str(path), error=error)


def read_file(path: Path, max_bytes: int, *, error: type[NsdePolicyError]) -> bytes:
    """Read a regular file; raise `error` for pipes, devices and files above a size limit."""
    try:
        check_regular(path, max_bytes, error=error)
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from problem
    if len(content) > max_bytes:
        raise error(f"{path} grew beyond {max_bytes} bytes while it was read")
    return content


def check_regular(path: Path, max_bytes: int, *, error: type[NsdePolicyError]) -> None:
    """Raise `error` for pipes and devices, which may block, and for files above a size limit."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{path} is not a regular file")
    if found.st_size > max_bytes:
        raise error(f"{path} has {found.st_size} bytes, the limit is {max_bytes}")


def parse_json(content: str | bytes, *, name: str, error: type[NsdePolicyError]) -> dict[str, Any]:
    """Parse a JSON object that may be damaged or hostile.

    Args:
        content: Text, or UTF-8 bytes.
        name: Name of the content in error messages, such as its file name.
        error: Exception class to raise.

    Raises:
        error: If the content is not a JSON object.
    """
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise error(f"{name} is not valid JSON: {problem}") from problem
    if not isinstance(values, dict):
        raise error(f"{name} holds a JSON {type(values).__name__}, expected a JSON object")
    return values


def replace_file(target: Path, content: bytes) -> None:
    """Write a file atomically: to a partial file, flushed to the disk, then renamed."""
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
    """Create the parent folder of a file; raise `OutputError` if the file cannot be written there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror}") from error
    if target.is_dir():
        raise OutputError(f"{target} cannot be written: it is a folder")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"{target} cannot be written: permission denied")


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
