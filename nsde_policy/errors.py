"""Errors that this package raises on purpose.

A message says what is wrong, what was expected and what to do, on one line: the command line prints it and
exits with code 2.
"""

import difflib
import importlib
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from types import ModuleType


class NsdePolicyError(Exception):
    """Base class of all errors raised on purpose; any other exception is a bug."""


class ConfigError(NsdePolicyError, ValueError):
    """Invalid setting, flag or combination of settings."""


class PluginError(ConfigError):
    """No method, task, reader or encoder of this name is installed."""


class MissingDependencyError(NsdePolicyError, ImportError):
    """An optional package is required but not installed."""


class DemoError(NsdePolicyError, ValueError):
    """Demonstrations or videos that cannot be read or used.

    The message says what is wrong and, if that depends on the command, advises what to do.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}; {advice}" if advice else problem)
        self.problem, self.advice = problem, advice


class EnvError(NsdePolicyError, ValueError):
    """An environment cannot be made, does not fit a policy, got invalid input, or broke during an episode."""


class CheckpointError(NsdePolicyError, ValueError):
    """A run directory, an exported graph, or a file of them is missing, damaged, inconsistent or in use."""


class ComparisonError(NsdePolicyError, ValueError):
    """Results cannot be compared, or a results file is damaged."""


class PolicyInputError(NsdePolicyError, ValueError):
    """Invalid observation, camera frame, action or option of a policy."""


class PlanError(NsdePolicyError, ValueError):
    """A plan has the wrong shape or is not finite."""


class SessionStoppedError(NsdePolicyError):
    """The control session stopped after a fault, and `reset` continues it; or it was closed."""


class RemoteError(NsdePolicyError, ValueError):
    """The other side of a connection sent an invalid message, or a server returned no plan.

    The `reason` is "protocol" for an invalid message; for a server that returned no plan it is "refused",
    "timeout", "failed" if its policy did, or "connection".
    """

    def __init__(self, message: str, reason: str = "protocol") -> None:
        super().__init__(message)
        self.reason = reason


def summarize_error(error: BaseException) -> str:
    """Return the message of an error, or its type if it has none, on one line of at most 300 characters."""
    try:
        return " ".join(str(error).split())[:300] or type(error).__name__
    except Exception:  # from the error's own __str__
        return type(error).__name__


def describe_problem(error: BaseException) -> str:
    """Return what went wrong; of an operating system's error without its number and its path."""
    return getattr(error, "strerror", None) or summarize_error(error)


@contextmanager
def wrap_read_errors(message: str, advice: str = "") -> Iterator[None]:
    """Raise `DemoError` with a message for any other error: readers of damaged files raise many kinds."""
    try:
        yield
    except NsdePolicyError:
        raise
    except Exception as error:
        raise DemoError(f"{message}: {describe_problem(error)}", advice) from error


def suggest(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean …?" with the most similar of some words, or nothing."""
    similar = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory was exhausted; torch raises `RuntimeError` on a CPU."""
    phrases = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(phrase in str(error) for phrase in phrases)


def import_optional(package: str, extra: str) -> ModuleType:
    """Import a package, or raise `MissingDependencyError` with the extra of this package that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise MissingDependencyError(
            f"this needs {name}, which is not installed: {describe_install(extra)}"
        ) from None


def describe_install(extra: str) -> str:
    """Return the command that installs what an extra of this package needs, by names that pip can find."""
    packages = list_requirements(extra)
    return f"pip install {shlex.join(packages)}" if packages else f"pip install -e '.[{extra}]'"


def list_extras() -> list[str]:
    """Return the names of the extras of this package; none if it is not installed."""
    try:
        return metadata.metadata("nsde-policy").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []


def list_requirements(extra: str) -> list[str]:
    """Return the packages of an extra with their versions; none if this package is not installed."""
    mark = re.compile(rf"extra == ['\"]{extra}['\"]")
    lines = (metadata.requires("nsde-policy") or []) if list_extras() else []
    return [line.partition(";")[0].strip() for line in lines if mark.search(line)]
