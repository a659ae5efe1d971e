"""A comparison as Markdown: scores with intervals and costs, differences pair by pair, and variations."""

from collections.abc import Sequence

from nsde_policy.eval.compare.entries import Latency
from nsde_policy.eval.compare.result import ACTIONS, Comparison, Row
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.paired import verdict
from nsde_policy.eval.statistics import Estimate

NOTHING = "–"
AXIS_TITLES = {
    "chunk": "Actions executed before planning again (T_a)",
    "demos": "Number of demonstrations",
    "latency_steps": "Plans that come late, control periods",
    "obs_noise": "Noise on observations, standard deviations of their change over one period",
    "push": "Block pushed at a random moment, px",
}


def table(comparison: Comparison, *, reference: str | None = None) -> str:
    """All tables, the most successful rows first; differences are to `reference`, a row's name."""
    parts = [_head(comparison)]
    if reference is not None or comparison.main_rows():
        parts.append(_main_table(comparison.main_rows(), comparison.reference(reference)))
    parts += [_sweep_table(comparison, axis) for axis in AXIS_TITLES]
    parts.append(_other_table(comparison.other_rows()))
    return "\n\n".join(part for part in parts if part)


def _head(comparison: Comparison) -> str:
    first, last = comparison.seeds
    where = ", ".join(f"{what}: {value}" for what, value in comparison.machine.items())
    return f"{comparison.task}, {comparison.reset_rule} starts {first} to {last}" + (
        f"; {where}" * bool(where)
    )


def _main_table(rows: Sequence[Row], reference: Row) -> str:
    varied = {
        "demonstrations": [row.setting.demos for row in rows],
        "T_a": [row.setting.chunk for row in rows],
    }
    varied = {title: values for title, values in varied.items() if len(set(values)) > 1}
    head = ["method", *varied, "network calls", "parameters", "training", "latency, ms"]
    head += ["mean max reward", "strict success", "episodes", "by training seed"]
    head += [f"reward − {reference.label}", f"success − {reference.label}", "McNemar p", "success: verdict"]
    lines = []
    for i, row in enumerate(rows):
        cells = [f"**{row.label}**" if row is reference else row.label]
        cells += [str(values[i]) for values in varied.values()]
        cells += [
            f"{row.calls:g}",
            as_count(row.parameters),
            as_duration(row.train_s),
            as_latency(row.latency),
        ]
        cells += [str(row.reward), str(row.success), str(row.success.n)]
        cells += [", ".join(f"{share:.3f}" for share in row.success_by_seed.values())]
        lines.append([*cells, *_against(row, reference)])
    return f"{_markdown(head, lines)}\n\n{_explanation(rows, reference)}"


def _against(row: Row, reference: Row) -> list[str]:
    """Differences to the reference, the test and the verdict."""
    if row is reference:
        return [NOTHING, NOTHING, NOTHING, "reference"]
    reward, success = row.difference(reference, "max_reward"), row.difference(reference, "success")
    test = row.mcnemar(reference)
    p = None if test is None else test.p
    split = NOTHING if test is None else f"{as_p_value(test.p)} ({test.only_a} : {test.only_b})"
    found = verdict(success, a=row.label, b=reference.label, p=p)
    return [as_signed(reward), as_signed(success), split, found]


def _explanation(rows: Sequence[Row], reference: Row) -> str:
    several = max(len(row.entries) for row in rows) > 1
    pooled = "Trainings from several seeds are averaged start by start before differences are taken. "
    return (
        f"{_shared(rows)}{len(reference.starts)} starts, the same for all; final weights. Network calls, one "
        f"after the other, and latency (median, 99th percentile) are for {ACTIONS} actions. Intervals: 95 %, "
        "over all episodes (bootstrap of the mean, Wilson's for success); of differences, paired bootstrap "
        "over starts, so they tell of other starts, not of other trainings. "
        + pooled
        * several
        + "McNemar: exact, on starts × training seeds that both have; in brackets, pairs on which only the "
        f"row : only {reference.label} succeeded. Ahead: the interval of the difference excludes 0, and "
        "p < 0.05."
    )


def _shared(rows: Sequence[Row]) -> str:
    """What is the same in all rows, and so in no column."""
    demos, chunks = ({getattr(row.setting, axis) for row in rows} for axis in ("demos", "chunk"))
    parts = [f"{demos.pop()} demonstrations, "] if len(demos) == 1 else []
    return "".join([*parts, *([f"T_a = {chunks.pop()}, "] if len(chunks) == 1 else [])])


def _sweep_table(comparison: Comparison, axis: str) -> str:
    found = comparison.sweep(axis)
    if not found:
        return ""
    values = sorted({value for along in found.values() for value in along})
    lines = []
    for along in found.values():
        label = next(iter(along.values())).label
        lines.append([label, *(_score(along[value]) if value in along else NOTHING for value in values)])
    title = f"{AXIS_TITLES[axis]}: mean max reward / strict success with its interval"
    return f"{title}\n\n{_markdown(['method', *(f'{value:g}' for value in values)], lines)}"


def _other_table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    lines = []
    for row in rows:
        _, chunk, demos, condition = row.setting
        lines.append(
            [row.label, str(chunk), str(demos), _troubles(condition), str(row.reward), str(row.success)]
        )
    head = ["method", "T_a", "demonstrations", "troubles", "mean max reward", "strict success"]
    return f"Other settings\n\n{_markdown(head, lines)}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _score(row: Row) -> str:
    return f"{row.reward.value:.3f} / {row.success}"


def as_signed(difference: Estimate) -> str:
    """A difference with its interval, signs on all three."""
    return f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]".replace("-", "−")


def as_p_value(p: float) -> str:
    """Three digits, or less than the smallest of them."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _troubles(condition: Condition) -> str:
    found = [f"{name} {value:g}" for name, value in condition.to_dict().items() if value]
    return ", ".join(found) or NOTHING


def as_count(number: int) -> str:
    """346000 as 346 k."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def as_duration(seconds: float | None) -> str:
    """90 s, 2.5 min or 3.1 h."""
    if seconds is None:
        return NOTHING
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def as_latency(latency: Latency | None) -> str:
    """Median and 99th percentile, milliseconds."""
    if latency is None:
        return NOTHING
    median, p99 = (f"{float(f'{value:.3g}'):g}" for value in (latency.median, latency.p99))
    return f"{median} ({p99})"
