"""Errors that this package raises on purpose.

A message says what was found, what was expected and what to do, on one line: the command line prints it and
exits with code 2.
"""

import importlib
from typing import Any


class NsdePolicyError(Exception):
    """Base class of all errors raised on purpose; any other exception is a bug."""


class ConfigError(NsdePolicyError, ValueError):
    """Invalid setting, flag or combination of settings."""


class PluginError(ConfigError):
    """No method, task, reader or encoder of this name is installed."""


class MissingDependencyError(NsdePolicyError, ImportError):
    """An optional package is required but not installed."""


class OutputError(NsdePolicyError):
    """A result file cannot be written."""


class DemoError(NsdePolicyError, ValueError):
    """Demonstrations that cannot be read or used."""


class NotAStoreError(DemoError):
    """The path is missing, empty, unreadable or not a zarr group."""


class DamagedStoreError(DemoError):
    """Metadata, a chunk or a zip directory of a store is missing or corrupt."""


class StoreLockedError(DemoError):
    """Another process is writing to the same store."""


class ArrayError(DemoError):
    """An array is missing, not numeric, or stored with an unsupported codec."""


class ArrayChoiceError(ArrayError):
    """An array that was named as observation or action is missing or holds images.

    Args:
        found: What is wrong.
        advice: Flags of `train` that name other arrays.
    """

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found, advice)
        self.found, self.advice = found, advice

    def __str__(self) -> str:
        return f"{self.found}; {self.advice}"


class EpisodeError(DemoError):
    """Episode boundaries, shapes, values or angle columns are invalid."""


class VideoError(DemoError):
    """A video file is damaged, too short, too large, or not a video."""


class DownloadError(NsdePolicyError):
    """A download failed or has unexpected content."""


class ArchiveError(DownloadError):
    """A downloaded archive is damaged or has unsafe content."""


class EnvError(NsdePolicyError):
    """An environment cannot be made, does not fit a policy, or broke during an episode."""


class ExpertError(NsdePolicyError):
    """A scripted expert cannot be used, raised an exception, or gave an unusable action."""


class EnvInputError(NsdePolicyError, ValueError):
    """Invalid action, state or option of an environment."""


class CheckpointError(NsdePolicyError, ValueError):
    """A run directory, or a file in it, is missing, damaged or inconsistent."""


class RunLockedError(CheckpointError):
    """Another process is training into the same run directory."""


class DivergedError(NsdePolicyError):
    """Training produced NaN or infinity."""


class ComparisonError(NsdePolicyError, ValueError):
    """Results cannot be compared, or a results file is damaged."""


class PolicyInputError(NsdePolicyError, ValueError):
    """Invalid observation, action or option of a policy."""


class FrameError(PolicyInputError):
    """A camera frame has the wrong shape or type.

    Args:
        camera: Name of the camera.
        problem: What is wrong with its frame; the message is both.
    """

    def __init__(self, camera: str, problem: str) -> None:
        super().__init__(camera, problem)
        self.camera, self.problem = camera, problem

    def __str__(self) -> str:
        return f"{self.camera} {self.problem}"


class MissingFrameError(FrameError):
    """A camera has no frame in an observation."""


class ImplausibleFrameError(FrameError):
    """A camera frame looks different from those of the demonstrations: black, uniform or noise."""


class NonFiniteObservationError(PolicyInputError):
    """An observation contains NaN or infinity."""


class PlanError(NsdePolicyError, ValueError):
    """A plan has the wrong shape or is not finite."""


class SessionStoppedError(NsdePolicyError):
    """The control session stopped after a fault; call `reset` to continue."""


class SessionClosedError(NsdePolicyError):
    """The control session was closed."""


class ProtocolError(NsdePolicyError, ValueError):
    """A message does not follow the protocol."""


class RemoteError(NsdePolicyError):
    """Base class of errors of `RemotePolicy`: the server returned no plan."""


class RemoteRefusedError(RemoteError):
    """The server refused: wrong token, too many clients, other version or invalid request."""


class RemoteTimeoutError(RemoteError):
    """No plan arrived before the deadline; a late one is discarded."""


class RemotePlanningError(RemoteError):
    """The policy failed on the server; see the server's log."""


class RemoteConnectionError(RemoteError):
    """The connection is closed, or was lost and reconnecting failed."""


class ExportError(NsdePolicyError):
    """A policy cannot be exported, or the exported graph disagrees with it."""


class GraphError(NsdePolicyError, ValueError):
    """An exported file is missing, damaged, unsafe or inconsistent."""


def summarize_error(error: BaseException) -> str:
    """Return the message of an error, or its type if it has none, on one line of at most 300 characters."""
    try:
        return " ".join(str(error).split())[:300] or type(error).__name__
    except Exception:  # from the error's own __str__
        return type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory was exhausted; torch raises `RuntimeError` on a CPU."""
    phrases = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(phrase in str(error) for phrase in phrases)


def import_optional(package: str, extra: str) -> Any:
    """Import a package, or raise `MissingDependencyError` with the extra of this package that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise MissingDependencyError(
            f"this needs {name}, which is not installed: pip install 'nsde-policy[{extra}]'"
        ) from None
