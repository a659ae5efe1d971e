"""Result of an attack: what was tried, and what came of it."""

from dataclasses import dataclass, field


@dataclass
class AttackResult:
    """Counts of one attack.

    Every attempt ends in exactly one of three ways: it was refused with a typed error (one line, exit code
    2), it was survived (the correct answer, or normal operation afterwards), or it found a bug.
    """

    name: str
    """Row of the table, such as `sessions: commands`."""
    refused: int = 0
    survived: int = 0
    bugs: list[str] = field(default_factory=list)
    """One line per bug: the input that caused it (or its seed), what happened, and what was expected."""

    @property
    def tried(self) -> int:
        """Number of attempts."""
        return self.refused + self.survived + len(self.bugs)
