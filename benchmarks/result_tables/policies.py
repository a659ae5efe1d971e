"""Tables of policies in closed loop: Push-T, camera frames, avoidance, Adroit, Meta-World, `auto`."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import msgspec
from robustness import sweep

from nsde_policy.eval.compare.modes import ModeOutcomes, estimate_modes
from nsde_policy.eval.compare.result import Comparison, read_comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.compare.table import format_costs
from nsde_policy.eval.statistics import mean
from result_tables.files import (
    NONE,
    RESULTS,
    by_seed,
    group,
    markdown,
    pool,
    pool_success,
    read,
)

ADROIT = ("door", "hammer", "relocate", "pen")
SWEEPS = {
    "chunk": "actions per plan",
    "demos": "demonstrations",
    "latency_steps": "plans late by, periods",
    "obs_noise": "noise",
    "push": "push, px",
}
MODES = 24


@cache
def _read_pusht() -> Comparison:
    return read_comparison(RESULTS / "pusht.json")


def pusht_methods() -> str:
    """Tabulate every method on Push-T, the most successful first."""
    read("pusht")
    found = _read_pusht()
    rows = found.main_rows()
    most = max(row.first.demos for row in rows)
    return _tabulate_methods([row for row in rows if row.first.demos == most], found.reference())


def _tabulate_methods(methods: Sequence[Row], reference: Row) -> str:
    head = ["method", "calls", "parameters", "training", "latency, ms", "score", "success", "episodes"]
    head += ["by training seed", "success − Neural SDE"]
    rows = []
    for row in methods:
        seeds = ", ".join(f"{value:.3f}" for value in row.means_by_seed("success").values())
        difference = "reference" if row is reference else _format_difference(row, reference)
        rows.append([row.label, *format_costs(row), row.score, row.success, row.episodes, seeds, difference])
    return markdown(head, rows)


def pusht_treatments() -> str:
    """Tabulate the Neural SDE and Diffusion Policy on Push-T, treated alike."""
    read("pusht")
    rows = {row.name: row for row in _read_pusht().main_rows()}
    treatments = {
        "aligned ends, plan selection": ("neural_sde", "diffusion, aligned ends"),
        "aligned ends": ("neural_sde, one plan", "diffusion, aligned ends, one plan"),
        "neither": ("neural_sde, recorded ends, one plan", "diffusion"),
    }
    lines = []
    for name, pair in treatments.items():
        one, other = (rows[each] for each in pair)
        lines.append([name, one.success, other.success, _format_difference(one, other)])
    return markdown(["both with", "Neural SDE", "Diffusion Policy", "difference"], lines)


def _format_difference(row: Row, reference: Row, column: str = "success") -> str:
    return str(row.difference(reference, column))


def pusht_sweep(axis: str) -> str:
    """Tabulate success on Push-T along one axis of disturbances or settings."""
    read("pusht")
    swept = sweep(_read_pusht(), axis)
    values = sorted({value for rows in swept.values() for value in rows})
    head = ["method", *(f"{SWEEPS[axis]} {value:g}" for value in values)]
    rows = [
        [next(iter(found.values())).label, *(found[v].success if v in found else NONE for v in values)]
        for found in swept.values()
    ]
    return markdown(head, rows)


def pusht_settings() -> str:
    """Tabulate presets and ablations of the Neural SDE on Push-T."""
    lines = []
    for file in ("pusht_runs", "pusht_runs_gym_pusht"):
        found = read(file)
        seeds = f"{found['reset_rule']}, {found['starts'][0]} to {found['starts'][1]}"
        for name, runs in group(found["outcomes"], lambda run: run["variant"]).items():
            times = [f"{run['train_s']:.1f} s" for run in runs if run["train_s"]]
            success = [run["success"] for run in runs]
            reward = pool([run["max_reward"] for run in runs])
            cells = [name, seeds, sum(map(len, success)), reward, pool_success(success), by_seed(success)]
            lines.append([*cells, ", ".join(times) or NONE])
    return markdown(
        ["variant", "seeds", "n", "mean max reward", "strict success", "by training seed", "training"], lines
    )


def pixels_settings(*files: str) -> str:
    """Tabulate policies from camera frames: variants and disturbances of the camera."""
    lines = []
    for file in files:
        found = read(file)
        seeds = f"{found['reset_rule']}, {found['starts'][0]} to {found['starts'][1]}"
        grouped = group(found["rows"], lambda row: (row["variant"], row["condition"]))
        for (name, camera), runs in grouped.items():
            success = [run["success"] for run in runs]
            reward = pool([run["max_reward"] for run in runs])
            times = ["{:.0f} + {:.0f}".format(*run["seconds"]) for run in runs if run["seconds"]]
            cells = [name, camera, seeds, sum(map(len, success)), reward, pool_success(success)]
            lines.append([*cells, by_seed(success), times[0] if times else NONE])
    head = ["variant", "camera disturbance", "seeds", "n", "mean max reward", "strict success"]
    return markdown([*head, "by training seed", "encoder + policy, s"], lines)


def avoiding_methods() -> str:
    """Tabulate success and modes on obstacle avoidance, the largest success × entropy first."""
    head = ["method", "training steps", "n", "success", "modes", "entropy", "success × entropy"]
    head += ["− Neural SDE", "distinct paths", "calls", "latency, ms"]
    lines = []
    comparisons = [msgspec.convert(read(file)["avoiding"], Comparison) for file in ("tasks", "tasks_equal")]
    reference = comparisons[0].reference()
    for comparison in comparisons:
        for row in comparison.main_rows():
            modes = ", ".join(str(each.observed) for each in row.outcomes)
            cells = [row.label, f"{row.first.train_steps:,}", row.episodes, row.success, modes]
            calls, _, _, latency = format_costs(row)
            difference = "reference" if row is reference else _format_difference(row, reference, "product")
            cells += [row.entropy or NONE, row.product, difference, row.distinct_paths, calls, latency]
            lines.append((row.product.value if row.product else 0.0, cells))
    unique = {tuple(map(str, cells[:7])): (value, cells) for value, cells in reversed(lines)}
    ordered = sorted(unique.values(), key=lambda each: -each[0])
    return markdown(head, [cells for _, cells in ordered])


def mode_settings(*files: str) -> str:
    """Tabulate success and entropy of settings of the Neural SDE, the largest success × entropy first."""
    head = [
        "setting",
        "seeds",
        "n",
        "success",
        "entropy",
        "success × entropy",
        "success by training",
        "modes",
    ]
    lines = []
    for file in files:
        found = read(file)
        for name, runs in group(found["rows"], lambda row: row["name"]).items():
            won = [[bool(value) for value in run["success"]] for run in runs]
            outcomes = [
                ModeOutcomes.from_columns(MODES, run["mode"], success)
                for run, success in zip(runs, won, strict=True)
            ]
            n = sum(map(len, won))
            entropy, product = estimate_modes(outcomes, range(n))
            steps = f", {runs[0]['train_steps']:,} steps" if "train_steps" in runs[0] else ""
            cells = [f"{name}{steps}", "{} to {}".format(*found["starts"]), n, pool_success(won)]
            cells += [entropy, product, by_seed(won)]
            modes = ", ".join(str(each.observed) for each in outcomes)
            lines.append((product.value, [*cells, modes]))
    return markdown(head, [cells for _, cells in sorted(lines, key=lambda each: -each[0])])


def adroit_methods() -> str:
    """Tabulate success of every method on the four Adroit tasks."""
    found = read("tasks")
    tasks = {name: msgspec.convert(found[f"adroit-{name}"], Comparison) for name in ADROIT}
    rows = {name: {row.label: row for row in each.main_rows()} for name, each in tasks.items()}
    lines = []
    for label in rows["door"]:
        own = [rows[name][label] for name in ADROIT]
        delays = sorted(row.latency.median for row in own if row.latency)
        latency = f"{sum(delays[1:3]) / 2:.1f}" if len(delays) == len(own) else NONE
        cells = [label, own[0].episodes, *(row.success for row in own)]
        lines.append([*cells, f"{own[0].calls_per_chunk:g}", latency])
    lines.sort(key=lambda line: -sum(estimate.value for estimate in line[2:6]))
    return markdown(["method", "n per task", *ADROIT, "calls", "latency, ms"], lines)


def adroit_differences() -> str:
    """Tabulate success on the Adroit tasks minus the Neural SDE, and returns."""
    found, lines = read("tasks"), []
    for name in ADROIT:
        comparison = msgspec.convert(found[f"adroit-{name}"], Comparison)
        reference = comparison.reference()
        for row in comparison.main_rows():
            difference = "reference" if row is reference else _format_difference(row, reference)
            verdict = "" if row is reference else row.decide(reference, "success")
            lines.append([name, row.label, row.score, difference, verdict])
    return markdown(["task", "method", "return", "success − Neural SDE", "verdict"], lines)


def metaworld() -> str:
    """Tabulate success of the preset `auto` on Meta-World."""
    comparisons = [msgspec.convert(found, Comparison) for found in read("metaworld").values()]
    lines: list[Sequence[Any]] = []
    for comparison in comparisons:
        (row,) = comparison.main_rows()
        seeds = ", ".join(f"{value:.2f}" for value in row.means_by_seed("success").values())
        lines.append([comparison.task.partition(":")[2], row.first.chunk, row.episodes, row.success, seeds])
    trainings = [entry.episodes for each in comparisons for entry in each.entries]
    won = [value for columns in trainings for value in columns.success]
    starts = [seed for columns in trainings for seed in columns.seed]
    lines.append(["**mean**", "", len(won), mean(won, groups=starts), ""])
    return markdown(["task", "actions per plan", "episodes", "success", "by training seed"], lines)


def _format_mean(values: Sequence[bool]) -> str:
    return f"{sum(values) / len(values):.2f}"


def auto_tasks() -> str:
    """Tabulate the preset `auto` on seven tasks."""
    lines = []
    for task, runs in group(read("auto_settings"), lambda row: row["task"]).items():
        known = [run["successes"] for run in runs if run["successes"]]
        success = pool_success(known) if known else NONE
        cells = [task, runs[0]["steps"], sum(len(run["scores"]) for run in runs), success]
        lines.append([*cells, pool([run["scores"] for run in runs])])
    return markdown(["task", "training steps", "n", "success", "score"], lines)


def arm_cameras() -> str:
    """Tabulate a simulated arm with two cameras: training on a CPU, and driving without one of them."""
    head = ["training", "seconds", "error 16 periods ahead ÷ repeating", "lost camera", "delivered"]
    head += ["commands", "without that camera", "held", "outside limits"]
    lines = []
    for name, found in read("arm_cameras").items():
        errors, (delivered, trials) = found["errors"], found.get("delivered", (0, 0))
        driven = found.get("lost") or {"none": {"delivered": delivered, "trials": trials}}
        shown = [name, f"{found['seconds']:.0f}", f"{errors['sample'][1] / errors['repeat'][1]:.2f}"]
        for camera, counts in driven.items():
            cells = [counts.get(key, NONE) for key in ("commands", "without_camera", "held", "outside")]
            lines.append([*shown, camera, f"{counts['delivered']} of {counts['trials']}", *cells])
    return markdown(head, lines)


def tuned() -> str:
    """Tabulate what `tune` found, against settings that were tuned by hand."""
    lines = []
    for task, found in read("tune").items():
        rows = msgspec.convert(found, Comparison).main_rows()
        by_hand = next(row for row in rows if row.name == "by hand")
        for row in rows:
            scores = {"success × entropy": row.product, "success": row.success, "return": row.score}
            what, score = next((what, each) for what, each in scores.items() if each is not None)
            column = {"success × entropy": "product", "return": "score"}.get(what, what)
            difference = "reference" if row is by_hand else _format_difference(row, by_hand, column)
            means = row.means_by_seed("success" if row.success else "score").values()
            by_training = ", ".join(f"{mean:.4g}".replace("-", "−") for mean in means)
            lines.append([task, row.name, what, row.episodes, score, difference, by_training])
    head = ["task", "settings", "score", "n", "value", "− by hand", "success or return by training"]
    return markdown(head, lines)


TABLES: dict[str, Callable[[], str]] = {
    "pusht_methods": pusht_methods,
    "pusht_treatments": pusht_treatments,
    **{f"pusht_{axis}": partial(pusht_sweep, axis) for axis in SWEEPS},
    "pusht_settings": pusht_settings,
    "pixels_results": partial(
        pixels_settings, "pixels", "pixels_baselines", "pixels_gym_pusht", "pixels_fast", "pixels_diffusion"
    ),
    "pixels_tuning": partial(pixels_settings, "pixels_tuning"),
    "avoiding_methods": avoiding_methods,
    "avoiding_settings": partial(mode_settings, "avoiding_settings"),
    "avoiding_tuning": partial(mode_settings, "avoiding_tuning", "avoiding_tuning_long"),
    "adroit_methods": adroit_methods,
    "adroit_differences": adroit_differences,
    "metaworld": metaworld,
    "auto_tasks": auto_tasks,
    "auto_forks": partial(mode_settings, "auto_avoiding", "auto_avoiding_long", "auto_forks"),
    "arm_cameras": arm_cameras,
    "tuned": tuned,
}
