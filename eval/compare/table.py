"""Markdown tables of a comparison: scores with intervals and costs, paired differences, and sweeps."""

from collections.abc import Sequence

from nsde_policy.eval.compare.result import ACTIONS, Comparison, Row
from nsde_policy.eval.statistics import Estimate, verdict

EMPTY_CELL = "–"
AXIS_TITLES = {
    "chunk": "Actions executed before planning again (T_a)",
    "demos": "Number of demonstrations",
    "latency_steps": "Plans that come late, control periods",
    "obs_noise": "Noise on observations, standard deviations of their change over one period",
    "push": "Block pushed at a random moment, px",
}


def format_comparison(comparison: Comparison, *, reference: str | None = None) -> str:
    """Format all tables, the most successful rows first; differences are to `reference`, a row's name."""
    first, last = comparison.seeds
    head = f"{comparison.task}, {comparison.reset_rule} starts {first} to {last}"
    machine = ", ".join(f"{role}: {device}" for role, device in comparison.machine.items())
    parts = [f"{head}; {machine}" if machine else head]
    if reference is not None or comparison.main_rows():
        parts.append(_format_main_table(comparison, comparison.reference(reference)))
    parts += [_format_sweep_table(comparison, axis) for axis in AXIS_TITLES]
    parts.append(_format_other_table(comparison))
    return "\n\n".join(part for part in parts if part)


def _format_main_table(comparison: Comparison, reference: Row) -> str:
    rows = comparison.main_rows()
    columns = {"demonstrations": [row.first.demos for row in rows], "T_a": [row.first.chunk for row in rows]}
    varied = {title: values for title, values in columns.items() if len(set(values)) > 1}
    head = ["method", *varied, "network calls", "parameters", "training", "latency, ms"]
    head += [comparison.score_title, "strict success", "episodes", "by training seed"]
    head += [f"reward − {reference.label}", f"success − {reference.label}", "McNemar p", "success: verdict"]
    lines = []
    for i, row in enumerate(rows):
        cells = [f"**{row.label}**" if row is reference else row.label]
        cells += [str(values[i]) for values in varied.values()]
        cells += [*format_costs(row), str(row.reward), str(row.success), str(row.success.n)]
        cells += [", ".join(f"{share:.3f}" for share in row.success_by_seed.values())]
        lines.append([*cells, *_format_differences(row, reference)])
    return f"{format_markdown(head, lines)}\n\n{_explain(rows, reference)}"


def _format_differences(row: Row, reference: Row) -> list[str]:
    """Format the differences to the reference, the test and the verdict."""
    if row is reference:
        return [EMPTY_CELL, EMPTY_CELL, EMPTY_CELL, "reference"]
    reward, success = row.difference(reference, "max_reward"), row.difference(reference, "success")
    test = row.mcnemar(reference)
    split = EMPTY_CELL if test is None else f"{format_p_value(test.p)} ({test.only_a} : {test.only_b})"
    decision = verdict(success, a=row.label, b=reference.label, p=None if test is None else test.p)
    return [format_difference(reward), format_difference(success), split, decision]


def _explain(rows: Sequence[Row], reference: Row) -> str:
    demos, chunks = ({getattr(row.first, axis) for row in rows} for axis in ("demos", "chunk"))
    shared = f"{demos.pop()} demonstrations, " if len(demos) == 1 else ""
    shared += f"T_a = {chunks.pop()}, " if len(chunks) == 1 else ""
    pooled = "Trainings from several seeds are averaged start by start before differences are taken. "
    return (
        f"{shared}{len(reference.first.episodes)} starts, the same for all; final weights. Network calls, "
        f"one after the other, and latency (median, 99th percentile) are for {ACTIONS} actions. Intervals: "
        "95 %, over all episodes (bootstrap of the mean, Wilson's for success); of differences, paired "
        "bootstrap over starts, so they tell of other starts, not of other trainings. "
        + (pooled if any(len(row.entries) > 1 for row in rows) else "")
        + "McNemar: exact, on starts × training seeds that both have; in brackets, pairs on which only the "
        f"row : only {reference.label} succeeded. Ahead: the interval of the difference excludes 0, and "
        "p < 0.05."
    )


def _format_sweep_table(comparison: Comparison, axis: str) -> str:
    swept = comparison.sweep(axis)
    if not swept:
        return ""
    values = sorted({value for rows in swept.values() for value in rows})
    lines = []
    for rows in swept.values():
        scores = {value: f"{row.reward.value:.3f} / {row.success}" for value, row in rows.items()}
        label = next(iter(rows.values())).label
        lines.append([label, *(scores.get(value, EMPTY_CELL) for value in values)])
    title = f"{AXIS_TITLES[axis]}: {comparison.score_title} / strict success with its interval"
    return f"{title}\n\n{format_markdown(['method', *(f'{value:g}' for value in values)], lines)}"


def _format_other_table(comparison: Comparison) -> str:
    rows = comparison.other_rows()
    if not rows:
        return ""
    lines = []
    for row in rows:
        first = row.first
        disturbances = [f"{name} {value:g}" for name, value in first.condition.to_dict().items() if value]
        cells = [row.label, str(first.chunk), str(first.demos), ", ".join(disturbances) or EMPTY_CELL]
        lines.append([*cells, str(row.reward), str(row.success)])
    head = ["method", "T_a", "demonstrations", "disturbances", comparison.score_title, "strict success"]
    return f"Other settings\n\n{format_markdown(head, lines)}"


def format_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def format_difference(difference: Estimate) -> str:
    """Format a difference with its interval, with signs on all three numbers."""
    return f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]".replace("-", "−")


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
