"""Every error this package raises on purpose.

A message says what was found, what was expected, and what to do; it fits on one line, because
the command line prints it as one line and exits with 2.
"""


class NsdePolicyError(Exception):
    """Base of every error raised on purpose; anything else that escapes is a bug."""


class ConfigError(NsdePolicyError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class DemoError(NsdePolicyError, ValueError):
    """The demonstrations do not have the form the package reads, or are damaged."""


class EnvInputError(NsdePolicyError, ValueError):
    """An environment was given an action, a state or an option it cannot take."""


class MissingDependencyError(NsdePolicyError, ImportError):
    """An optional package is needed for what was asked and is not installed."""

    @classmethod
    def extra(cls, package: str, extra: str) -> "MissingDependencyError":
        """Name the missing package and the extra that installs it."""
        return cls(f"this needs {package}, which is not installed: pip install 'nsde-policy[{extra}]'")


class UsageError(NsdePolicyError):
    """The command line cannot be understood."""
