"""Result of a target: what was tried, and how it ended, one row per kind of attack."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

REFUSED, SURVIVED = "refused", "survived"
"""How an attempt ends well; any other answer describes a bug."""


@dataclass
class Row:
    """Counts of one kind of attack.

    Every attempt ends in exactly one of three ways: it was refused with a typed error (one line, exit code
    2), it was survived (the correct answer, or normal operation afterwards), or it found a bug.
    """

    refused: int = 0
    survived: int = 0
    bugs: list[str] = field(default_factory=list)
    """One line per bug: the input that caused it (or its seed), what happened, and what was expected."""


@dataclass
class Result:
    """Table of a target: its rows by name, such as `sessions: commands`."""

    rows: dict[str, Row] = field(default_factory=dict)

    def count(self, row: str, answer: str, attempt: object) -> None:
        """Count an attempt: `REFUSED`, `SURVIVED`, or what went wrong, which is a bug."""
        found = self.rows.setdefault(row, Row())
        if answer == REFUSED:
            found.refused += 1
        elif answer == SURVIVED:
            found.survived += 1
        else:
            found.bugs.append(f"{attempt!s:.300}: {answer}")


def number_attempts(seconds: float) -> Iterator[int]:
    """Count attempts, at least one, until the time is up."""
    ends, number = time.monotonic() + seconds, 0
    while number == 0 or time.monotonic() < ends:
        yield number
        number += 1
