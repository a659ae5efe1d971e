"""`nsde-policy doctor`: check the installation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Doctor:
    """Print versions and devices, and check that the installation works."""

    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> None:
        """Print the diagnosis; raise `NsdePolicyError` if a check failed."""
        from nsde_policy.diagnostics import diagnose

        diagnosis = diagnose()
        print(diagnosis.to_json() if self.json else diagnosis.to_text())
        diagnosis.raise_if_failed()
