"""Tables of a comparison: scores with intervals and costs, paired differences, modes, and sweeps."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from nsde_policy.eval.compare.result import ACTIONS, PRODUCT_TITLE, Comparison
from nsde_policy.eval.compare.row import ComparedRow, Row
from nsde_policy.eval.paths import SAME_PATH
from nsde_policy.eval.statistics import MIN_PAIRS, verdict
from nsde_policy.eval.tables import EMPTY_CELL, Cell, Table, format_mean

SAMPLE_RULE = (
    f"Differences need at least {MIN_PAIRS} seeds and {MIN_PAIRS} distinct paths of both policies: with "
    "fewer, [n = …] stands for the interval, and no difference is shown."
)
"""Which differences have an interval and can be ahead."""
MODE_RULE = (
    f"Exception, for {PRODUCT_TITLE}: a policy whose every training repeats one path has entropy 0 and needs "
    "no further paths."
)
"""Exception from `SAMPLE_RULE` for differences of success × entropy."""
PAIRED_NOTE = (
    "Both policies are rolled out from the same seeds, so the difficulty of a seed cancels. Intervals: 95 %, "
    "paired bootstrap over seeds; they cover the choice of seeds, not of trainings."
)
R = TypeVar("R", bound=ComparedRow)
AXIS_TITLES = {
    "chunk": "Actions executed before planning again (T_a)",
    "demos": "Number of demonstrations",
    "latency_steps": "Plans that come late, control periods",
    "obs_noise": "Noise on observations, standard deviations of their change over one period",
    "push": "Block pushed at a random moment, px",
}


def format_comparison(comparison: Comparison, *, reference: str | None = None) -> str:
    """Format all tables as Markdown; differences are to `reference`, a row's name."""
    head = f"{comparison.task}, {comparison.seeds_title}"
    machine = ", ".join(f"{role}: {device}" for role, device in comparison.machine.items())
    tables = list_tables(comparison, reference=reference)
    return "\n\n".join([f"{head}; {machine}" if machine else head, *(each.to_markdown() for each in tables)])


def list_tables(comparison: Comparison, *, reference: str | None = None) -> list[Table]:
    """Return the tables that are not empty: scores, differences, modes, sweeps and other settings."""
    tables = []
    if reference is not None or comparison.main_rows():
        chosen = comparison.reference(reference)
        titles = {column: comparison.column_title(column) for column in comparison.columns[::-1]}
        tables += [
            _tabulate_scores(comparison, chosen),
            tabulate_differences(
                comparison.main_rows(), chosen, titles, note=_explain_differences(comparison, chosen)
            ),
            _tabulate_modes(comparison, chosen),
        ]
    tables += [_tabulate_sweep(comparison, axis) for axis in AXIS_TITLES]
    tables.append(_tabulate_others(comparison))
    return [table for table in tables if table.lines]


def _tabulate_scores(comparison: Comparison, reference: Row) -> Table:
    """Tabulate scores and costs, the best row first."""
    rows, deciding = comparison.main_rows(), comparison.columns[-1]
    shown = ("success", "score") if deciding == "success" else ("score", "steps")
    columns: dict[str, Sequence[Cell]] = {
        "method": [row.label for row in rows],
        **{comparison.column_title(column): [getattr(row, column) for row in rows] for column in shown},
        "episodes": [str(row.episodes) for row in rows],
    }
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
    ).strip()
    lines = list(zip(*columns.values(), strict=True))
    return Table("scores", list(columns), lines, note=note, reference=reference.label)


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


def _explain_differences(comparison: Comparison, reference: Row) -> str:
    parts = [PAIRED_NOTE]
    if any(len(row.entries) > 1 for row in comparison.main_rows()):
        parts.append("Trainings of one method are averaged seed by seed before differences are taken.")
    if comparison.columns[-1] == "success":
        parts.append(
            "Won : lost: pairs of a seed and a training on which only this policy, or only the reference, "
            "succeeded. Ahead: the interval excludes 0, and McNemar's exact p < 0.05."
        )
    else:
        parts.append("Ahead: the interval excludes 0.")
    parts.append(SAMPLE_RULE)
    return " ".join([*parts, MODE_RULE] if reference.outcomes else parts)


def _tabulate_modes(comparison: Comparison, reference: Row) -> Table:
    """Tabulate distinct modes, entropy, success × entropy and distinct paths; empty without modes."""
    rows = comparison.mode_rows()
    head = ["method", "entropy", PRODUCT_TITLE, "distinct modes", "distinct paths in episodes"]
    head += [f"{PRODUCT_TITLE} − {reference.label}", f"{PRODUCT_TITLE}: verdict"]
    lines: list[list[Cell]] = []
    for row in rows:
        difference = None if row is reference else row.compare_modes(reference)
        decided = "reference" if row is reference else EMPTY_CELL
        if difference is not None:
            decided = verdict(difference, a=row.label, b=reference.label)
        lines.append(
            [
                row.label,
                row.entropy or EMPTY_CELL,
                row.product or EMPTY_CELL,
                format_mode_counts(row),
                f"{row.distinct_paths} in {row.episodes}",
                difference or EMPTY_CELL,
                decided,
            ]
        )
    base = rows[0].first.episodes.modes if rows else 0
    note = (
        "Distinct modes: taken by successful episodes, by training seed. Entropy: of these modes, base "
        f"{base}, Miller and Madow's estimate, the mean over trainings; intervals: 95 %, basic bootstrap, "
        "wider if all successes lie in one mode. Distinct paths: episodes that differ by no more than "
        f"{100 * SAME_PATH:g} % of the extent of all paths repeat one path and are one sample. A "
        "deterministic policy from one initial state has n = 1, however often it is rolled out, and entropy "
        "0. [n = 0] or [n = 1]: no training has more distinct paths of successes, too few for an interval. "
        f"Ahead: the interval of the paired difference excludes 0. {SAMPLE_RULE} {MODE_RULE}"
    )
    return Table("modes", head, lines, title="Modes", note=note, reference=reference.label)


def format_mode_counts(row: Row) -> str:
    """Format the modes in which each training succeeded, such as "23, 24 of 24"."""
    return f"{', '.join(str(each.observed) for each in row.outcomes)} of {row.first.episodes.modes}"


def _tabulate_sweep(comparison: Comparison, axis: str) -> Table:
    swept = comparison.sweep(axis)
    values = sorted({value for rows in swept.values() for value in rows})
    lines = [
        [
            next(iter(rows.values())).label,
            *(_format_short(rows[v], comparison.columns) if v in rows else EMPTY_CELL for v in values),
        ]
        for rows in swept.values()
    ]
    measured = " / ".join(map(comparison.column_title, comparison.columns))
    title = f"{AXIS_TITLES[axis]}: {measured} with its interval"
    return Table(axis, ["method", *(f"{value:g}" for value in values)], lines, title=title)


def _format_short(row: Row, columns: Sequence[str]) -> str:
    """Format the means of a row, with the interval of the one that decides."""
    *others, deciding = (getattr(row, column) for column in columns)
    return " / ".join([*(format_mean(each.value) for each in others), str(deciding)])


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
    training = EMPTY_CELL if row.train_s is None else _format_duration(row.train_s)
    return [f"{row.first.calls_per_chunk:g}", _format_count(row.first.parameters), training, latency]


def _format_count(number: int) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _format_duration(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
