"""`nsde-policy doctor`: check the installation."""

from dataclasses import dataclass

from .shared.options import Command


@dataclass(frozen=True)
class Doctor(Command):
    """Print versions and devices, and check that the installation works."""

    def run(self) -> None:
        """Print the diagnosis; raise `NsdePolicyError` if a check failed."""
        from .diagnostics import diagnose

        for line in diagnose():
            print(line)
