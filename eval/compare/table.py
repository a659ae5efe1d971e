"""Tables of a comparison: scores with intervals and costs, paired differences, and other settings."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from ..rollouts.paths import SAME_PATH
from ..statistics import MIN_PAIRS
from ..tables import EMPTY_CELL, Cell, Table, format_mean
from .result import ACTIONS, Comparison
from .row import ComparedRow, Row

PAIRED_NOTE = (
    "Both policies are rolled out from the same seeds, so the difficulty of a seed cancels. Trainings of one "
    "method are averaged seed by seed. Intervals: 95 %, paired bootstrap over seeds; they cover the choice "
    f"of seeds, not of trainings. Differences need at least {MIN_PAIRS} seeds and {MIN_PAIRS} distinct paths "
    "of both policies: with fewer, [n = …] stands for the interval, and no difference is shown. Ahead: the "
    "interval excludes 0"
)
SUCCESS_NOTE = (
    ", and McNemar's exact p < 0.05. Won : lost: pairs of a seed and a training on which only this policy, "
    "or only the reference, succeeded"
)
R = TypeVar("R", bound=ComparedRow)


def format_comparison(comparison: Comparison, *, reference: str | None = None) -> str:
    """Format all tables as Markdown; differences are to `reference`, a row's name."""
    head = f"{comparison.task}, {comparison.seeds_title}"
    machine = ", ".join(f"{role}: {device}" for role, device in comparison.machine.items())
    tables = list_tables(comparison, reference=reference)
    return "\n\n".join([f"{head}; {machine}" if machine else head, *(each.to_markdown() for each in tables)])


def list_tables(comparison: Comparison, *, reference: str | None = None) -> list[Table]:
    """Return the tables that are not empty: scores, differences and other settings."""
    tables = []
    if reference is not None or comparison.main_rows():
        reference_row = comparison.reference(reference)
        columns = [*comparison.columns[::-1], *comparison.mode_columns[1:]]
        tables += [
            _tabulate_scores(comparison, reference_row),
            tabulate_differences(
                comparison.main_rows(),
                reference_row,
                {column: comparison.column_title(column) for column in columns},
                note=f"{PAIRED_NOTE}{SUCCESS_NOTE if columns[0] == 'success' else ''}.",
            ),
        ]
    tables.append(_tabulate_others(comparison))
    return [table for table in tables if table.lines]


def _tabulate_scores(comparison: Comparison, reference: Row) -> Table:
    """Tabulate scores and costs, the best row first."""
    rows, deciding = comparison.main_rows(), comparison.columns[-1]
    shown = ("success", "score") if deciding == "success" else ("score", "steps")
    columns: dict[str, Sequence[Cell]] = {"method": [row.label for row in rows]}
    for column in (*shown, *comparison.mode_columns):
        estimates = [getattr(row, column) for row in rows]
        columns[comparison.column_title(column)] = [each or EMPTY_CELL for each in estimates]
    columns["episodes"] = [str(row.episodes) for row in rows]
    diversity, explained = _describe_diversity(comparison)
    columns |= diversity
    if any(len(row.entries) > 1 for row in rows):
        means = (row.means_by_seed(deciding).values() for row in rows)
        columns["by training seed"] = [", ".join(map(format_mean, each)) for each in means]
    shared = ""
    for setting, title in (("demos", "demonstrations"), ("chunk", "T_a")):
        values = [str(getattr(row.first, setting)) for row in rows]
        if len(set(values)) > 1:
            columns[title] = values
        else:
            shared += f"{title} = {values[0]}, "
    costs = zip(*map(format_costs, rows), strict=True)
    columns |= zip(("network calls", "parameters", "training", "latency, ms"), costs, strict=True)
    note = (
        f"{comparison.task_info.reporting.score_note} {shared}{len(reference.first.episodes)} seeds, the "
        "same for all; final weights. Network calls, one after the other, and latency (median, 99th "
        f"percentile) are for {ACTIONS} actions. Intervals: 95 %, over all episodes (bootstrap of the mean"
        f"{', Wilson for success' if deciding == 'success' else ''})."
    )
    notes = [note.strip(), *_explain_selection(rows), *explained]
    lines = list(zip(*columns.values(), strict=True))
    return Table("scores", list(columns), lines, note=" ".join(notes), reference=reference.label)


def _describe_diversity(comparison: Comparison) -> tuple[dict[str, list[str]], list[str]]:
    """Return columns of distinct modes, by training, and of distinct paths if some repeat, with notes."""
    rows, columns, notes = comparison.main_rows(), dict[str, list[str]](), list[str]()
    if comparison.mode_columns:
        columns["distinct modes"] = [
            f"{', '.join(str(each.observed) for each in row.outcomes)} of {row.first.episodes.modes}"
            for row in rows
        ]
        notes.append(
            "Entropy: of the modes of successful episodes, the mean over trainings; 1 if all modes are "
            "equally frequent. Its bootstrap interval does not know of modes that no episode took."
        )
    if any(row.distinct_paths < row.episodes for row in rows):
        columns["distinct paths"] = [str(row.distinct_paths) for row in rows]
        notes.append(
            f"Episodes that differ by no more than {100 * SAME_PATH:g} % of the extent of all paths repeat "
            "one path and are one sample: [n = 1] is a deterministic policy from one initial state."
        )
    return columns, notes


def _explain_selection(rows: Sequence[Row]) -> list[str]:
    """Return a note on each row whose policy selects plans."""
    fractions = [(row, np.mean([entry.selected_share for entry in row.entries])) for row in rows]
    return [
        f"{row.label}: {100 * fraction:.0f} % of plans are selected among several, by {row.first.select}. "
        "Its network calls are the mean over all plans; its latency is that of a selected plan."
        for row, fraction in fractions
        if row.first.select != "none"
    ]


def tabulate_differences(rows: Sequence[R], reference: R, columns: Mapping[str, str], *, note: str) -> Table:
    """Tabulate paired differences to the reference, by column and title; the first column decides."""
    deciding = next(iter(columns))
    tests = ["won : lost", "McNemar p"] if deciding == "success" else []
    lines: list[list[Cell]] = []
    for row in rows:
        if row is not reference:
            cells = [row.difference(reference, column) or EMPTY_CELL for column in columns]
            tested = _format_test(row, reference) if tests else []
            lines.append([row.label, *cells, *tested, row.decide(reference, deciding)])
    head = [f"minus {reference.label}", *columns.values(), *tests, f"{columns[deciding]}: verdict"]
    return Table("differences", head, lines, title="Differences", note=note)


def _format_test(row: ComparedRow, reference: ComparedRow) -> list[str]:
    """Format McNemar's test: pairs that only one side won, and the p-value."""
    assert isinstance(row, Row)
    assert isinstance(reference, Row)
    test = row.mcnemar(reference)
    if test is None:
        return [EMPTY_CELL, EMPTY_CELL]
    return [f"{test.only_a} : {test.only_b}", f"{test.p:.3f}" if test.p >= 0.001 else "< 0.001"]


def _tabulate_others(comparison: Comparison) -> Table:
    lines: list[list[Cell]] = []
    for row in comparison.other_rows():
        first = row.first
        disturbances = [f"{name} {value:g}" for name, value in first.condition.to_dict().items() if value]
        cells = [row.label, str(first.chunk), str(first.demos), ", ".join(disturbances) or EMPTY_CELL]
        lines.append([*cells, *(getattr(row, column) for column in comparison.columns)])
    head = ["method", "T_a", "demonstrations", "disturbances"]
    head += map(comparison.column_title, comparison.columns)
    return Table("others", head, lines, title="Other settings")


def format_costs(row: Row) -> list[str]:
    """Format network calls, parameters, training time and latency (median, 99th percentile)."""
    latency = EMPTY_CELL
    if row.latency is not None:
        median, p99 = (f"{float(f'{value:.3g}'):g}" for value in (row.latency.median, row.latency.p99))
        latency = f"{median} ({p99})"
    seconds, count = row.train_s, row.first.parameters
    training = EMPTY_CELL if seconds is None else f"{seconds:.0f} s"
    if seconds is not None and seconds >= 120:
        training = f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds / 60:.1f} min"
    size = f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count / 1e3:.3g} k" if count >= 1e3 else str(count)
    return [f"{row.calls_per_chunk:g}", size, training, latency]
