"""`nsde-policy doctor`: what is installed, what it can use, and whether the pieces fit together."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Doctor:
    """Print versions and devices, and check that the installation works."""

    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> None:
        """Print the findings; raise when a check failed."""
        from nsde_policy.diagnostics import examine

        findings = examine()
        print(findings.as_json() if self.json else findings.as_text())
        findings.raise_if_ill()
