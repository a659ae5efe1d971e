"""Read files without trusting them, write files atomically, and lock directories.

Every file that may come from elsewhere is read through this module: `open_regular` never blocks on a pipe and
never reads a device.
"""

import json
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from nsde_policy.errors import ConfigError, DemoError, NsdePolicyError, describe_problem

PARTIAL = ".partial"
"""Suffix of files that are still being written."""
MAX_JSON_BYTES = 16 * 2**20
"""Largest JSON text that is parsed."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of the small file that git leaves where git-LFS did not fetch the content."""
MAX_POINTER_BYTES = 1024
MAX_UNPACKED_VARIABLE = "NSDE_POLICY_MAX_UNPACKED_BYTES"


def get_max_unpacked() -> int:
    """Return the most bytes that an array or a chunk may take in memory: a variable, or 1 GiB."""
    text = os.environ.get(MAX_UNPACKED_VARIABLE, str(2**30))
    if not text.isdecimal():
        raise ConfigError(f"{MAX_UNPACKED_VARIABLE} must be a number of bytes, got {text!r:.40}")
    return int(text)


def read_json(path: Path, *, error: type[NsdePolicyError], allow_nan: bool = False) -> dict[str, Any]:
    """Read a JSON object from a regular file; raise `error` if it is missing, damaged or hostile."""
    content = read_file(path, MAX_JSON_BYTES, error=error)
    return parse_json(content, name=str(path), error=error, allow_nan=allow_nan)


def find_difference(written: object, new: object, name: str = "") -> str:
    """Return which value differs first between two JSON values; "" if none does that both have."""
    if isinstance(written, dict) and isinstance(new, dict):
        both = (key for key in written if key in new)
        changes = (find_difference(written[key], new[key], f"{name}.{key}".lstrip(".")) for key in both)
        return next(filter(None, changes), "")
    return "" if written == new or not name else f"{name} is {written!r:.40} there and {new!r:.40} here"


def read_file(path: Path, max_bytes: int, *, error: type[NsdePolicyError]) -> bytes:
    """Read a regular file; raise `error` for pipes, devices and files above a size limit."""
    with open_regular(path, max_bytes, error=error) as file:
        return file.read()


def open_regular(path: Path, max_bytes: int | None = None, *, error: type[NsdePolicyError]) -> BinaryIO:
    """Open a regular file; raise `error` for anything else, for git-LFS pointers and above a size limit."""
    try:
        nonblocking = getattr(os, "O_NONBLOCK", 0)  # of a pipe, do not wait for a writer; missing on Windows
        file = open(path, "rb", opener=lambda path, flags: os.open(path, flags | nonblocking))  # noqa: SIM115
    except (OSError, ValueError) as problem:
        raise error(f"{path} cannot be read: {describe_problem(problem)}") from problem
    status, fault = os.fstat(file.fileno()), ""
    if not stat.S_ISREG(status.st_mode):
        fault = "is not a regular file"
    elif max_bytes is not None and status.st_size > max_bytes:
        fault = f"has {status.st_size} bytes, the limit is {max_bytes}"
    elif status.st_size <= MAX_POINTER_BYTES and file.read(len(LFS_POINTER)) == LFS_POINTER:
        fault = "is a git-LFS pointer, not the file itself; run `git lfs pull` in its folder"
    if fault:
        file.close()
        raise error(f"{path} {fault}")
    file.seek(0)
    return file


def parse_json(
    content: str | bytes, *, name: str, error: type[NsdePolicyError], allow_nan: bool = False
) -> dict[str, Any]:
    """Parse a JSON object that may be damaged or hostile; `error`, if raised, calls it `name`.

    NaN and Infinity, which are not JSON but written by many programs, are accepted if `allow_nan`.
    """
    try:
        values = decode_json(content, allow_nan=allow_nan)
    except ValueError as problem:
        raise error(f"{name} is not valid JSON: {problem}") from problem
    if not isinstance(values, dict):
        raise error(f"{name} holds a JSON {type(values).__name__}, expected a JSON object")
    return values


def decode_json(content: str | bytes, *, allow_nan: bool = False) -> Any:
    """Decode any JSON value; raise `ValueError` if it is not JSON, or nested too deeply."""
    try:
        if not allow_nan:
            return msgspec.json.decode(content)
        values = json.loads(content)
        # Raises for half a character, as "\ud800", which cannot be written again.
        json.dumps(values, ensure_ascii=False).encode()
        return values
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def replace_file(target: Path, content: bytes | str) -> None:
    """Write a file atomically: to its own partial file, flushed to the disk, then renamed.

    Text is written as UTF-8. Processes that replace the same file do not disturb each other; the last one
    wins. A process that is killed may leave a partial file behind.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
        _check_replaceable(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.parent / f"{target.name}.{secrets.token_hex(6)}{PARTIAL}"
        try:
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        if sys.platform != "win32":  # Windows cannot open folders
            directory = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
    except (OSError, ValueError) as error:
        raise NsdePolicyError(f"{target} cannot be written: {describe_problem(error)}") from error


@contextmanager
def publish_complete(target: Path) -> Iterator[Path]:
    """Give a path at which a new file or folder is written; it is renamed to `target` at the end.

    An error leaves nothing behind. A process that is killed may leave a folder with the suffix `PARTIAL`.
    """
    if os.path.lexists(target):
        raise NsdePolicyError(f"{target} exists; move it away or choose a new path")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(PARTIAL, f"{target.name}.", target.parent)
    except (OSError, ValueError) as error:
        raise NsdePolicyError(f"{target} cannot be written: {describe_problem(error)}") from error
    with folder as name:
        unfinished = Path(name) / target.name
        yield unfinished
        unfinished.rename(target)


def check_writable(target: Path) -> None:
    """Raise `NsdePolicyError` if a file cannot be written, before the work that it will hold."""
    _check_replaceable(target)
    folder = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise NsdePolicyError(f"{target} cannot be written: cannot write into {folder}")


def _check_replaceable(target: Path) -> None:
    """Raise `NsdePolicyError` for folders, and for devices and pipes, which a renamed file would replace."""
    if target.is_dir():
        raise NsdePolicyError(f"{target} cannot be written: it is a folder")
    if target.exists() and not target.is_file():
        raise NsdePolicyError(f"{target} cannot be written: it is not a regular file")


def lock_directory(path: Path, *, error: type[NsdePolicyError] = DemoError) -> int:
    """Create and lock a directory; `os.close` of the returned descriptor, or a crash, releases the lock.

    Readers are not affected. An `error` is raised if another process or thread holds the lock.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = _open_lock(path)
    except (OSError, ValueError) as problem:
        raise error(f"the folder {path} cannot be created: {describe_problem(problem)}") from problem
    try:
        _lock(descriptor)
    except OSError as problem:
        os.close(descriptor)
        reason = describe_problem(problem)
        if isinstance(problem, BlockingIOError):
            reason = "another process is writing to it; wait for it to finish or choose another path"
        raise error(f"the folder {path} cannot be locked: {reason}") from problem
    return descriptor


def _open_lock(path: Path) -> int:
    """Open a folder, or on Windows, which cannot lock folders, a file next to it."""
    if sys.platform == "win32":
        return os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _lock(descriptor: int) -> None:
    """Lock an open folder or file; raise `BlockingIOError` if it is locked already."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as problem:
            raise BlockingIOError(*problem.args) from problem
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
