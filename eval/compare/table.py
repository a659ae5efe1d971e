"""Tables of a comparison: scores with intervals and costs, and paired differences."""

from collections.abc import Sequence

from nsde_policy.interface.roughness import ROUGH

from ..statistics import MIN_PAIRS
from ..tables import EMPTY_CELL, Cell, Table, format_mean, tabulate_differences
from .result import ACTIONS, Comparison
from .row import Row

PAIRED_NOTE = (
    "Both policies are rolled out from the same seeds, so the difficulty of a seed cancels. Trainings of one "
    "method are averaged seed by seed. Intervals: 95 %, paired bootstrap over seeds; they cover the choice "
    f"of seeds, not of trainings. Ahead: the interval excludes 0, on at least {MIN_PAIRS} seeds."
)
MODES_NOTE = (
    "Entropy: of the modes of successful episodes, the mean over trainings; 1 if all modes are equally "
    "frequent. Its bootstrap interval does not know of modes that no episode took."
)
ROUGHNESS_NOTE = (
    "Roughness: root mean square of the second difference of the commands, divided by the same of the "
    f"demonstrations; above {ROUGH:g}, sample with less noise or execute longer chunks."
)


def format_comparison(comparison: Comparison) -> str:
    """Format all tables as Markdown."""
    machine = ", ".join(f"{role}: {device}" for role, device in comparison.machine.items())
    head = f"{comparison.task}, {comparison.seeds_title}; {machine}"
    return "\n\n".join([head, *(table.to_markdown() for table in list_tables(comparison))])


def list_tables(comparison: Comparison) -> list[Table]:
    """Return the table of scores and, for several rows, the table of differences."""
    tables = [_tabulate_scores(comparison, comparison.reference)]
    if len(comparison.rows) > 1:
        columns = [*comparison.columns[::-1], *comparison.mode_columns[1:]]
        titles = {column: comparison.column_title(column) for column in columns}
        tables.append(tabulate_differences(comparison.rows, comparison.reference, titles, note=PAIRED_NOTE))
    return tables


def _tabulate_scores(comparison: Comparison, reference: Row) -> Table:
    """Tabulate scores and costs, the best row first."""
    rows, deciding = comparison.rows, comparison.columns[-1]
    shown = ("success", "score") if deciding == "success" else ("score", "steps")
    columns: dict[str, Sequence[Cell]] = {"method": [row.label for row in rows]}
    for column in (*shown, *comparison.mode_columns):
        estimates = [getattr(row, column) for row in rows]
        columns[comparison.column_title(column)] = [estimate or EMPTY_CELL for estimate in estimates]
    roughness = [row.roughness for row in rows]
    if any(roughness):
        columns["roughness"] = [estimate or EMPTY_CELL for estimate in roughness]
    columns["episodes"] = [str(row.episodes) for row in rows]
    if comparison.mode_columns:
        counts = (", ".join(str(each.distinct_modes) for each in row.trainings) for row in rows)
        columns["distinct modes"] = [f"{of_row} of {rows[0].first.episodes.modes}" for of_row in counts]
    if any(len(row.entries) > 1 for row in rows):
        means = (row.means_by_seed(deciding).values() for row in rows)
        columns["by training seed"] = [", ".join(map(format_mean, of_row)) for of_row in means]
    shared = []
    settings = {
        "demonstrations": [str(row.first.demos) for row in rows],
        "T_a": [str(row.first.chunk) for row in rows],
    }
    for title, values in settings.items():
        if len(set(values)) > 1:
            columns[title] = values
        else:
            shared.append(f"{title} = {values[0]}, ")
    columns["network calls"] = [f"{row.calls_per_chunk:g}" for row in rows]
    columns["parameters"] = [format_count(row.first.parameters) for row in rows]
    columns["training"] = [format_duration(row.train_s) for row in rows]
    seeds, wilson = len(reference.first.episodes), ", Wilson for success" if deciding == "success" else ""
    notes = [
        comparison.task_info.reporting.score_note,
        f"{''.join(shared)}{seeds} seeds, the same for all; final weights. Network calls, one after the "
        f"other, are for {ACTIONS} actions. Intervals: 95 %, over all episodes (bootstrap of the "
        f"mean{wilson}).",
        MODES_NOTE if comparison.mode_columns else "",
        ROUGHNESS_NOTE if any(roughness) else "",
    ]
    note = " ".join(filter(None, notes))
    lines = list(zip(*columns.values(), strict=True))
    return Table("scores", list(columns), lines, note=note, reference=reference.label)


def format_count(count: int) -> str:
    """Format a number of parameters, such as "346 k"."""
    if count >= 1e6:
        return f"{count / 1e6:.3g} M"
    return f"{count / 1e3:.3g} k" if count >= 1e3 else str(count)


def format_duration(seconds: float | None) -> str:
    """Format a training time, such as "8.2 min"."""
    if seconds is None:
        return EMPTY_CELL
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
