"""Tables of results, written as Markdown or as HTML (`nsde_policy.eval.report.tables`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from .statistics import Estimate

EMPTY_CELL = "–"
Cell = str | Estimate
"""Text, or a figure with its interval, which HTML draws as well."""


@dataclass(frozen=True)
class Table:
    """Titles and cells; the first cell of a line is the label of its row."""

    name: str
    """Kind of the table, such as "scores"."""
    head: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    title: str = ""
    """Text above the table."""
    note: str = ""
    """Text below it: how to read the columns."""
    reference: str = ""
    """Label of the row that the others are compared with."""

    def to_markdown(self) -> str:
        """Format title, table and note; the reference is bold."""
        lines = [
            [f"**{label}**" if label == self.reference else str(label), *map(str, cells)]
            for label, *cells in self.lines
        ]
        return "\n\n".join(filter(None, [self.title, format_markdown(self.head, lines), self.note]))


def format_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def format_mean(value: float) -> str:
    """Format a mean without an interval, with as many digits as an estimate has."""
    return str(Estimate(value, value, value, 1)).split(" ")[0]
