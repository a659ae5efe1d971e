"""Every error this package raises on purpose.

A message says what was found, what was expected, and what to do; it fits on one line, because
the command line prints it as one line and exits with 2.
"""


class NsdePolicyError(Exception):
    """Base of every error raised on purpose; anything else that escapes is a bug."""


class ConfigError(NsdePolicyError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class PluginError(ConfigError):
    """No method, task, reader or encoder of this name is installed."""


class DemoError(NsdePolicyError, ValueError):
    """The demonstrations do not have the form the package reads, or are damaged."""


class NotAStoreError(DemoError):
    """The path holds no zarr group that can be opened: absent, empty, unreadable, or something else."""


class DamagedStoreError(DemoError):
    """Part of the store is gone or garbled: metadata, a chunk, a zip file's directory."""


class MissingArrayError(DemoError):
    """The store lacks an array that was asked for."""


class UnsupportedArrayError(DemoError):
    """An array holds something other than numbers, or is packed in a way that is not read."""


class NonFiniteError(DemoError):
    """A number is NaN, infinite, or too large for float32."""


class EpisodeError(DemoError):
    """Frames and episodes do not fit together."""


class AngleError(DemoError):
    """A dimension declared to be an angle cannot be one."""


class StoreBusyError(DemoError):
    """Another process is recording to the same store."""


class DownloadError(NsdePolicyError):
    """A file cannot be fetched, or is not what it should be."""


class ArchiveError(DownloadError):
    """A downloaded archive is damaged, or holds what it must not."""


class EnvInputError(NsdePolicyError, ValueError):
    """An environment was given an action, a state or an option it cannot take."""


class OutputError(NsdePolicyError):
    """A result cannot be written where it was asked for."""


class MissingDependencyError(NsdePolicyError, ImportError):
    """An optional package is needed for what was asked and is not installed."""

    @classmethod
    def extra(cls, package: str, extra: str) -> "MissingDependencyError":
        """Name the missing package and the extra that installs it."""
        return cls(f"this needs {package}, which is not installed: pip install 'nsde-policy[{extra}]'")


class UsageError(NsdePolicyError):
    """The command line cannot be understood."""


class CheckpointError(NsdePolicyError, ValueError):
    """A run directory, or a file in it, is missing, damaged, or does not fit."""


class DivergedError(NsdePolicyError):
    """Training produced numbers that are not finite."""


class ComparisonError(NsdePolicyError, ValueError):
    """Results cannot be compared, or a file of them is damaged."""


class PolicyInputError(NsdePolicyError, ValueError):
    """A policy was given an observation or an action it cannot take."""


class NonFiniteObservationError(PolicyInputError):
    """A policy was given an observation with NaN or infinity in it."""


class PlanError(NsdePolicyError, ValueError):
    """A planner answered with something that cannot be sent to a robot."""


class SessionStoppedError(NsdePolicyError):
    """A control session stopped after a fault and waits for `reset`."""


class SessionClosedError(NsdePolicyError):
    """A control session was asked for a step after its end."""


class ProtocolError(NsdePolicyError, ValueError):
    """What came over the wire is not a message of this version."""


class RemoteError(NsdePolicyError):
    """A policy behind a server gave no plan."""


class RemoteRefusedError(RemoteError):
    """The server will not plan: no token, too many clients, another version, a request it cannot take."""


class RemoteLateError(RemoteError):
    """No plan came in time; one that comes later is not used."""


class RemoteFailedError(RemoteError):
    """The policy behind the server failed; the server's log says why."""


class RemoteLostError(RemoteError):
    """There is no connection to the server, and connecting again did not help."""


class RemoteClosedError(RemoteError):
    """The connection was closed on this side, on purpose."""


class ExportError(NsdePolicyError):
    """A policy cannot be written as one graph, or the graph does not answer as the policy does."""


class GraphError(NsdePolicyError, ValueError):
    """A file of an exported policy is missing, damaged, hostile, or not what it says it is."""
