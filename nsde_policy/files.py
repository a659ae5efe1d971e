"""Read files without trusting them, write files atomically, and lock directories.

Every file that may come from elsewhere is read through this module: `open_regular` never blocks on a pipe and
never reads a device, and `decode_json` returns only values that the rest of the package can handle.
"""

import json
import math
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from nsde_policy.errors import ConfigError, DemoError, NsdePolicyError

PARTIAL = ".partial"
"""Suffix of files that are still being written."""
MAX_JSON_BYTES = 16 * 2**20
"""Largest JSON text that is parsed."""
MAX_JSON_VALUES = 2**20
"""Most values of a JSON text, counted by its brackets and commas; a million small lists take 100 MB."""
MAX_JSON_DEPTH = 64
"""Most JSON lists and objects inside each other."""
MAX_INTEGER_DIGITS = 40
"""Most digits of an integer in JSON; more would not fit into a float."""
_SCALARS = (str, int, float, type(None))

MAX_UNPACKED_VARIABLE = "NSDE_POLICY_MAX_UNPACKED_BYTES"


def get_max_unpacked() -> int:
    """Return the most bytes that an array or a chunk may take in memory: a variable, or 1 GiB."""
    text = os.environ.get(MAX_UNPACKED_VARIABLE, str(2**30))
    if not text.isdecimal():
        raise ConfigError(f"{MAX_UNPACKED_VARIABLE} must be a number of bytes, got {text!r:.40}")
    return int(text)


def read_json(
    path: Path,
    *,
    error: type[NsdePolicyError],
    max_bytes: int = MAX_JSON_BYTES,
    allow_nan: bool = False,
) -> dict[str, Any]:
    """Read a JSON object from a file that may be missing, damaged or hostile.

    Args:
        path: A regular file; pipes and devices are rejected, so that reading never blocks.
        error: Exception class to raise; its message names the file and what is wrong with it.
        max_bytes: Size limit of the file.
        allow_nan: Accept NaN and Infinity, see `parse_json`.

    Raises:
        error: If the file cannot be read, is too large or does not hold a JSON object.
    """
    content = read_file(path, max_bytes, error=error)
    return parse_json(content, name=str(path), error=error, allow_nan=allow_nan)


def read_file(path: Path, max_bytes: int, *, error: type[NsdePolicyError]) -> bytes:
    """Read a regular file; raise `error` for pipes, devices and files above a size limit."""
    with open_regular(path, max_bytes, error=error) as file:
        try:
            content = file.read(max_bytes + 1)
        except OSError as problem:
            raise error(f"{path} cannot be read: {problem.strerror or problem}") from problem
    if len(content) > max_bytes:
        raise error(f"{path} grew beyond {max_bytes} bytes while it was read")
    return content


def open_regular(path: Path, max_bytes: int | None = None, *, error: type[NsdePolicyError]) -> BinaryIO:
    """Open a regular file; raise `error` for anything else, and for files above a size limit.

    A path may become a pipe after it was checked, so the file is opened without waiting for a writer and the
    open file is checked again.
    """
    try:
        _check_regular(os.stat(path), path, max_bytes, error)  # opening a device may change its state
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115
    except (OSError, ValueError) as problem:  # the latter for a null byte in the path
        if isinstance(problem, NsdePolicyError):
            raise
        raise error(f"{path} cannot be read: {_describe_problem(problem)}") from problem
    try:
        _check_regular(os.fstat(file.fileno()), path, max_bytes, error)
    except BaseException:
        file.close()
        raise
    return file


def _describe_problem(problem: OSError | ValueError) -> str:
    """Return what went wrong, without the number of the error and the path."""
    return getattr(problem, "strerror", None) or str(problem)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_regular(
    found: os.stat_result, path: Path, max_bytes: int | None, error: type[NsdePolicyError]
) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{path} is not a regular file")
    if max_bytes is not None and found.st_size > max_bytes:
        raise error(f"{path} has {found.st_size} bytes, the limit is {max_bytes}")


def parse_json(
    content: str | bytes, *, name: str, error: type[NsdePolicyError], allow_nan: bool = False
) -> dict[str, Any]:
    """Parse a JSON object that may be damaged or hostile.

    Args:
        content: Text, or UTF-8 bytes.
        name: Name of the content in error messages, such as its file name.
        error: Exception class to raise.
        allow_nan: Accept NaN and Infinity, which are not JSON but written by many programs.

    Raises:
        error: If the content is not a JSON object.
    """
    try:
        values = decode_json(content, allow_nan=allow_nan)
    except ValueError as problem:
        raise error(f"{name} is not valid JSON: {problem}") from problem
    if not isinstance(values, dict):
        raise error(f"{name} holds a JSON {type(values).__name__}, expected a JSON object")
    return values


def decode_json(content: str | bytes, *, allow_nan: bool = False) -> Any:
    """Decode any JSON value of bounded size, depth and numbers.

    Raises:
        ValueError: If it is not JSON, or above a bound.
    """
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it has {len(content)} bytes, the limit is {MAX_JSON_BYTES}")
    text = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if (size := sum(map(text.count, (b"[", b"{", b",")))) > MAX_JSON_VALUES:
        raise ValueError(f"it has about {size} values, the limit is {MAX_JSON_VALUES}")
    parse_constant = float if allow_nan else _reject_constant
    try:
        values = json.loads(
            content, parse_int=_parse_integer, parse_float=_parse_float, parse_constant=parse_constant
        )
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} deep") from None
    level = [values]
    for _ in range(MAX_JSON_DEPTH):
        members = (each.values() if isinstance(each, dict) else each for each in level)
        level = [inner for each in members if not isinstance(each, _SCALARS) for inner in each]
        if not level:
            return values
    raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} deep")


def _parse_integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError(f"the number {text[:12]}… is too large")
    return int(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:12]} is too large")
    return value


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def replace_file(target: Path, content: bytes | str) -> None:
    """Write a file atomically: to a partial file of its own, flushed to the disk, then renamed.

    Text is written as UTF-8; bytes of a path that are not UTF-8 become escapes, as in JSON. Processes that
    replace the same file do not disturb each other; the last one wins. A process that is killed may leave a
    partial file behind, see `remove_partial_files`.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        _check_replaceable(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = _name_partial(target)
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
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, ValueError) as error:  # the latter for a null byte in the path
        raise NsdePolicyError(f"{target} cannot be written: {_describe_problem(error)}") from error


def check_writable(target: Path) -> None:
    """Raise `NsdePolicyError` if a file cannot be written; leave nothing behind, not even its folder."""
    missing = [folder for folder in target.parents if not os.path.lexists(folder)]
    trial = _name_partial(target)
    try:
        _check_replaceable(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        trial.open("xb").close()
        trial.unlink()
    except (OSError, ValueError) as error:  # the latter for a null byte in the path
        raise NsdePolicyError(f"{target} cannot be written: {_describe_problem(error)}") from error
    finally:
        for folder in missing:  # the innermost first
            with suppress(OSError):
                folder.rmdir()


def _name_partial(target: Path) -> Path:
    return target.parent / f"{target.name}.{secrets.token_hex(6)}{PARTIAL}"


def _check_replaceable(target: Path) -> None:
    """Raise `NsdePolicyError` for folders, and for devices and pipes, which a renamed file would replace."""
    if target.is_dir():
        raise NsdePolicyError(f"{target} cannot be written: it is a folder")
    if target.exists() and not target.is_file():
        raise NsdePolicyError(f"{target} cannot be written: it is not a regular file")


def remove_partial_files(target: Path) -> None:
    """Delete what killed processes left of `target`; the caller must be its only writer."""
    start = f"{target.name}."
    for file in target.parent.iterdir():
        if file.name.startswith(start) and file.suffix == PARTIAL:
            with suppress(OSError):
                file.unlink()


def lock_directory(
    path: Path,
    *,
    error: type[NsdePolicyError] = DemoError,
    locked: type[NsdePolicyError] = DemoError,
) -> int:
    """Create and lock a directory; `os.close` of the returned descriptor, or a crash, releases the lock.

    Readers are not affected.

    Args:
        path: The directory.
        error: Exception class to raise if it cannot be created or locked.
        locked: Exception class to raise if another process, or another thread, holds the lock.
    """
    import fcntl

    try:
        path.mkdir(parents=True, exist_ok=True)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, ValueError) as problem:  # the latter for a null byte in the path
        raise error(f"the folder {path} cannot be created: {_describe_problem(problem)}") from problem
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(directory)
        if isinstance(problem, BlockingIOError):
            raise locked(
                f"another process is writing to {path}; wait for it to finish or choose another path"
            ) from problem
        raise error(f"the folder {path} cannot be locked: {problem.strerror}") from problem
    return directory
