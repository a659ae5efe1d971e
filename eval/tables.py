"""Tables of results, written as Markdown or as HTML (`nsde_policy.eval.report.tables`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from .statistics import Difference, Estimate

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


class Comparable(Protocol):
    """Row of a table that can be compared with another one."""

    @property
    def label(self) -> str:
        """Label of the row."""

    def difference(self, other: Self, column: str) -> Difference | None:
        """Return a column of this row minus the other; None if one lacks it."""

    def decide(self, other: Self, column: str) -> str:
        """Return which of two rows is ahead."""


R = TypeVar("R", bound=Comparable)


def tabulate_differences(rows: Sequence[R], reference: R, columns: Mapping[str, str], *, note: str) -> Table:
    """Tabulate paired differences to the reference, by column and title; the first column decides."""
    deciding = next(iter(columns))
    lines: list[list[Cell]] = []
    for row in rows:
        if row is not reference:
            cells: list[Cell] = [row.difference(reference, column) or EMPTY_CELL for column in columns]
            lines.append([row.label, *cells, row.decide(reference, deciding)])
    head = [f"minus {reference.label}", *columns.values(), f"{columns[deciding]}: verdict"]
    return Table("differences", head, lines, title="Differences", note=note)


def format_label(name: str, method: str, title: str) -> str:
    """Return a name with the method's title: "diffusion, DDIM-10" becomes "Diffusion Policy, DDIM-10"."""
    if not name.startswith(method):
        return name
    detail = name.removeprefix(method)
    return title if title.endswith(detail) else title + detail


def format_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def format_mean(value: float) -> str:
    """Format a mean without an interval, with as many digits as an estimate has."""
    return str(Estimate(value, value, value, 1)).split(" ")[0]
