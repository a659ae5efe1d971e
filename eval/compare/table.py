"""Markdown tables of a comparison: scores with intervals and costs, paired differences, and sweeps."""

from collections.abc import Sequence

from nsde_policy.eval.compare.result import ACTIONS, PRODUCT_TITLE, Comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.paths import SAME_PATH
from nsde_policy.eval.statistics import MIN_PAIRS, Estimate, verdict

EMPTY_CELL = "–"
SAMPLE_RULE = (
    f"Differences need at least {MIN_PAIRS} starts and {MIN_PAIRS} distinct paths of both policies: with "
    "fewer, [n = …] stands for the interval, and no difference is shown."
)
"""Which differences have an interval and can be ahead."""
MODE_RULE = (
    f"Exception, for {PRODUCT_TITLE}: a policy whose every training repeats one path has entropy 0 and needs "
    "no further paths."
)
"""Exception from `SAMPLE_RULE` for differences of success × entropy."""
AXIS_TITLES = {
    "chunk": "Actions executed before planning again (T_a)",
    "demos": "Number of demonstrations",
    "latency_steps": "Plans that come late, control periods",
    "obs_noise": "Noise on observations, standard deviations of their change over one period",
    "push": "Block pushed at a random moment, px",
}


def format_comparison(comparison: Comparison, *, reference: str | None = None) -> str:
    """Format all tables, the most successful rows first; differences are to `reference`, a row's name."""
    head = f"{comparison.task}, {comparison.starts_title}"
    machine = ", ".join(f"{role}: {device}" for role, device in comparison.machine.items())
    parts = [f"{head}; {machine}" if machine else head]
    if reference is not None or comparison.main_rows():
        parts.append(_format_main_table(comparison, comparison.reference(reference)))
        parts.append(format_mode_markdown(comparison, comparison.reference(reference)))
    parts += [_format_sweep_table(comparison, axis) for axis in AXIS_TITLES]
    parts.append(_format_other_table(comparison))
    return "\n\n".join(part for part in parts if part)


def _format_main_table(comparison: Comparison, reference: Row) -> str:
    rows = comparison.main_rows()
    columns = {"demonstrations": [row.first.demos for row in rows], "T_a": [row.first.chunk for row in rows]}
    varied = {title: values for title, values in columns.items() if len(set(values)) > 1}
    head = ["method", *varied, "network calls", "parameters", "training", "latency, ms"]
    *others, deciding = comparison.columns
    shown = [*others, deciding] if others else [deciding, "steps"]
    head += [*map(comparison.column_title, shown), "episodes", "by training seed"]
    short = {"score": comparison.score_word}
    head += [f"{short.get(column, column)} − {reference.label}" for column in comparison.columns]
    head += ["McNemar p"] if deciding == "success" else []
    head.append(f"{short.get(deciding, deciding)}: verdict")
    lines = []
    for i, row in enumerate(rows):
        cells = [f"**{row.label}**" if row is reference else row.label]
        cells += [str(values[i]) for values in varied.values()]
        cells += [*format_costs(row), *(str(getattr(row, column)) for column in shown), str(row.episodes)]
        cells += [", ".join(map(format_mean, row.means_by_seed(deciding).values()))]
        lines.append([*cells, *_format_differences(row, reference, comparison.columns)])
    return f"{format_markdown(head, lines)}\n\n{_explain(rows, reference, deciding)}"


def _format_differences(row: Row, reference: Row, columns: Sequence[str]) -> list[str]:
    """Format the differences to the reference, the test of successes and the verdict."""
    deciding = columns[-1]
    if row is reference:
        return [EMPTY_CELL for _ in columns] + [EMPTY_CELL] * (deciding == "success") + ["reference"]
    cells = [format_difference(row.difference(reference, column)) for column in columns]
    if deciding == "success":
        test = row.mcnemar(reference)
        cells.append(
            EMPTY_CELL if test is None else f"{format_p_value(test.p)} ({test.only_a} : {test.only_b})"
        )
    return [*cells, row.decide(reference, deciding, a=row.label, b=reference.label)]


def _explain(rows: Sequence[Row], reference: Row, deciding: str) -> str:
    demos, chunks = ({getattr(row.first, axis) for row in rows} for axis in ("demos", "chunk"))
    shared = f"{demos.pop()} demonstrations, " if len(demos) == 1 else ""
    shared += f"T_a = {chunks.pop()}, " if len(chunks) == 1 else ""
    pooled = "Trainings from several seeds are averaged start by start before differences are taken. "
    means = "bootstrap of the mean"
    test = f"Ahead: the interval of the difference excludes 0. {SAMPLE_RULE}"
    if deciding == "success":
        means += ", Wilson's for success"
        test = (
            "McNemar: exact, on starts × training seeds that both have; in brackets, pairs on which only the "
            f"row : only {reference.label} succeeded. Ahead: the interval of the difference excludes 0, and "
            f"p < 0.05. {SAMPLE_RULE}"
        )
    return (
        f"{shared}{len(reference.first.episodes)} starts, the same for all; final weights. Network calls, "
        f"one after the other, and latency (median, 99th percentile) are for {ACTIONS} actions. Intervals: "
        f"95 %, over all episodes ({means}); of differences, paired "
        "bootstrap over starts, so they tell of other starts, not of other trainings. "
        + (pooled if any(len(row.entries) > 1 for row in rows) else "")
        + test
        + (f" {MODE_RULE}" if reference.outcomes else "")
    )


def format_mode_markdown(comparison: Comparison, reference: Row) -> str:
    """Format distinct modes, entropy, success × entropy and distinct paths; "" if the task has no modes."""
    rows = comparison.mode_rows()
    if not rows:
        return ""
    head = ["method", comparison.column_title("success"), "distinct modes", "entropy", PRODUCT_TITLE]
    head += [
        "distinct paths in episodes",
        f"{PRODUCT_TITLE} − {reference.label}",
        f"{PRODUCT_TITLE}: verdict",
    ]
    lines = []
    for row in rows:
        cells = [f"**{row.label}**" if row is reference else row.label, str(row.success or EMPTY_CELL)]
        cells += [
            format_mode_counts(row),
            str(row.entropy or EMPTY_CELL),
            str(row.product),
            f"{row.distinct_paths} in {row.episodes}",
        ]
        lines.append([*cells, *compare_products(row, reference)])
    return f"Modes\n\n{format_markdown(head, lines)}\n\n{explain_modes(rows)}"


def compare_products(row: Row, reference: Row) -> list[str]:
    """Format the difference of success × entropy to the reference, and the verdict."""
    if row is reference:
        return [EMPTY_CELL, "reference"]
    found = row.compare_modes(reference)
    if found is None:
        return [EMPTY_CELL, EMPTY_CELL]
    return [format_difference(found.product), verdict(found.product, a=row.label, b=reference.label)]


def format_mode_counts(row: Row) -> str:
    """Format the modes in which each training succeeded, such as "23, 24 of 24"."""
    return f"{', '.join(str(each.observed) for each in row.outcomes)} of {row.first.episodes.modes}"


def format_path_count(row: Row) -> str:
    """Format the number of distinct paths of all trainings, such as "1 in 960"."""
    return f"{row.distinct_paths} in {row.episodes}"


def explain_modes(rows: Sequence[Row]) -> str:
    """Explain the columns of a table of modes."""
    return (
        "Distinct modes: ways that successful episodes took, by training seed. Entropy: of these modes, base "
        f"{rows[0].first.episodes.modes}, Miller and Madow's estimate, the mean over trainings; intervals: "
        "95 %, basic bootstrap, wider if all successes lie in one mode. Distinct paths: episodes that differ "
        "by no more than "
        f"{100 * SAME_PATH:g} % of the extent of all paths repeat one path and are one sample. A "
        "deterministic policy from one start has n = 1, however often it is played, and entropy 0. [n = 0] "
        "or [n = 1]: no training has more distinct paths of successes, too few for an interval. Ahead: the "
        f"interval of the paired difference excludes 0. {SAMPLE_RULE} {MODE_RULE}"
    )


def _format_sweep_table(comparison: Comparison, axis: str) -> str:
    swept = comparison.sweep(axis)
    if not swept:
        return ""
    values = sorted({value for rows in swept.values() for value in rows})
    lines = []
    for rows in swept.values():
        scores = {value: _format_short(row, comparison.columns) for value, row in rows.items()}
        label = next(iter(rows.values())).label
        lines.append([label, *(scores.get(value, EMPTY_CELL) for value in values)])
    measured = " / ".join(map(comparison.column_title, comparison.columns))
    title = f"{AXIS_TITLES[axis]}: {measured} with its interval"
    return f"{title}\n\n{format_markdown(['method', *(f'{value:g}' for value in values)], lines)}"


def _format_short(row: Row, columns: Sequence[str]) -> str:
    """Format the means of a row, with the interval of the one that decides."""
    *others, deciding = (getattr(row, column) for column in columns)
    return " / ".join([*(format_mean(each.value) for each in others), str(deciding)])


def _format_other_table(comparison: Comparison) -> str:
    rows = comparison.other_rows()
    if not rows:
        return ""
    lines = []
    for row in rows:
        first = row.first
        disturbances = [f"{name} {value:g}" for name, value in first.condition.to_dict().items() if value]
        cells = [row.label, str(first.chunk), str(first.demos), ", ".join(disturbances) or EMPTY_CELL]
        lines.append([*cells, *(str(getattr(row, column)) for column in comparison.columns)])
    head = ["method", "T_a", "demonstrations", "disturbances"]
    head += map(comparison.column_title, comparison.columns)
    return f"Other settings\n\n{format_markdown(head, lines)}"


def format_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def format_difference(difference: Estimate) -> str:
    """Format a difference with its interval, if enough pairs can show one, with signs on all numbers."""
    return difference.format(signs=True, fewest=MIN_PAIRS)


def format_mean(value: float) -> str:
    """Format a mean without an interval, with as many digits as an estimate has."""
    return Estimate(value, value, value, 1).format().split(" ")[0]


def format_p_value(p: float) -> str:
    """Format a p-value with three decimals, or as below the smallest of them."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def format_costs(row: Row) -> list[str]:
    """Format network calls, parameters, training time and latency (median, 99th percentile)."""
    calls, latency = f"{row.first.calls_per_chunk:g}", EMPTY_CELL
    if row.latency is not None:
        median, p99 = (f"{float(f'{value:.3g}'):g}" for value in (row.latency.median, row.latency.p99))
        latency = f"{median} ({p99})"
    return [calls, _format_count(row.first.parameters), _format_duration(row.train_s), latency]


def _format_count(number: int) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _format_duration(seconds: float | None) -> str:
    if seconds is None:
        return EMPTY_CELL
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
