"""Tables of policies in closed loop: Push-T, camera frames, avoidance, Adroit, Meta-World, `auto`, `tune`."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from robustness import list_main_rows, sweep

from nsde_policy.eval.compare.result import Comparison, read_comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.compare.table import format_count, format_duration
from nsde_policy.eval.statistics import mean
from result_tables.files import NONE, RESULTS, by_seed, group, markdown, pool, pool_success, read
from result_tables.metaworld_camera import tabulate_tasks

ADROIT = ("door", "hammer", "relocate", "pen")
UNCOMPARED = ("25k steps", "full noise", "best")
"""Endings of names of rows that only tuning compared."""
GYM_PUSHT = ", initial states of gym-pusht"
DISTURBANCES = {
    "undisturbed": ("obs_noise", 0),
    "noise 0.5": ("obs_noise", 0.5),
    "noise 1": ("obs_noise", 1),
    "push 50 px": ("push", 50),
    "push 100 px": ("push", 100),
    "4 periods late": ("latency_steps", 4),
    "8 periods late": ("latency_steps", 8),
    "replanned every action": ("chunk", 1),
}


@cache
def _read_pusht() -> Comparison:
    return read_comparison(RESULTS / "pusht.json")


def pusht_methods() -> str:
    """Tabulate every method on Push-T, the most successful first."""
    read("pusht")
    comparison = _read_pusht()
    rows = list_main_rows(comparison)
    most = max(row.first.demos for row in rows)
    reference = comparison.reference
    head = ["method", "calls", "parameters", "training", "score", "success", "n"]
    lines = []
    for row in rows:
        if row.first.demos == most and not row.label.endswith(UNCOMPARED):
            seeds = ", ".join(f"{value:.3f}" for value in row.means_by_seed("success").values())
            costs = [
                f"{row.calls_per_chunk:g}",
                format_count(row.first.parameters),
                format_duration(row.train_s),
            ]
            cells = [row.label, *costs, row.score, row.success, row.episodes, seeds]
            lines.append([*cells, _format_difference(row, reference)])
    return markdown([*head, "by training", "success − Neural SDE"], lines)


def pusht_treatments() -> str:
    """Tabulate the Neural SDE and Diffusion Policy on Push-T, treated alike."""
    read("pusht")
    rows = {row.first.name: row for row in list_main_rows(_read_pusht())}
    treatments = {
        "aligned ends, plan selection": ("neural_sde", "diffusion, aligned ends"),
        "aligned ends": ("neural_sde, one plan", "diffusion, aligned ends, one plan"),
        "neither": ("neural_sde, recorded ends, one plan", "diffusion"),
    }
    lines = []
    for name, pair in treatments.items():
        sde, diffusion = (rows[each] for each in pair)
        lines.append([name, sde.success, diffusion.success, _format_difference(sde, diffusion)])
    return markdown(["both with", "Neural SDE", "Diffusion Policy", "difference"], lines)


def _format_difference(row: Row, reference: Row, column: str = "success") -> str:
    return "reference" if row is reference else str(row.difference(reference, column))


def pusht_disturbances() -> str:
    """Tabulate success on Push-T under disturbances, and with a plan for every action."""
    read("pusht")
    swept = {axis: sweep(_read_pusht(), axis) for axis, _ in DISTURBANCES.values()}
    lines = []
    for name, rows in swept["obs_noise"].items():
        cells = [
            swept[axis][name][value].success if name in swept[axis] else NONE
            for axis, value in DISTURBANCES.values()
        ]
        lines.append([rows[0].label, *cells])
    return markdown(["method", *DISTURBANCES], lines)


def pusht_settings() -> str:
    """Tabulate presets and ablations of the Neural SDE on Push-T."""
    lines = []
    for file, note in (("pusht_runs", ""), ("pusht_runs_gym_pusht", GYM_PUSHT)):
        for name, runs in group(read(file)["outcomes"], lambda run: run["variant"]).items():
            success = [run["success"] for run in runs]
            reward = pool([run["max_reward"] for run in runs])
            lines.append([f"{name}{note}", reward, pool_success(success), by_seed(success)])
    return markdown(["variant", "mean max reward", "strict success", "by training"], lines)


def pixels_methods() -> str:
    """Tabulate policies from camera frames on undisturbed frames."""
    lines = []
    for file in ("pixels", "pixels_baselines", "pixels_fast", "pixels_diffusion", "pixels_gym_pusht"):
        note = GYM_PUSHT if file.endswith("gym_pusht") else ""
        clean = [row for row in read(file)["rows"] if row["condition"] == "none"]
        for name, runs in group(clean, lambda row: row["variant"]).items():
            success = [run["success"] for run in runs]
            reward = pool([run["max_reward"] for run in runs])
            cells = [f"{name}{note}", sum(map(len, success)), reward, pool_success(success)]
            lines.append([*cells, by_seed(success)])
    lines.sort(key=lambda line: -line[3].value)
    return markdown(["variant", "n", "mean max reward", "strict success", "by training"], lines)


def pixels_disturbances() -> str:
    """Tabulate strict success under disturbances of the camera."""
    rows = [row for file in ("pixels", "pixels_baselines") for row in read(file)["rows"]]
    names = ["pixels", "clean frames only, one plan", "small image diffusion, longer, DDPM-100"]
    names.append("image regression")
    success: dict[tuple[str, str], list[list[bool]]] = {}
    for row in rows:
        condition = row["condition"].replace("occlusion 10 %", "10 % square")
        success.setdefault((condition, row["variant"]), []).append(row["success"])
    lines = []
    for condition in dict.fromkeys(condition for condition, name in success if name == "pixels"):
        stored = [success.get((condition, name)) for name in names]
        lines.append([condition, *(NONE if runs is None else pool_success(runs) for runs in stored)])
    return markdown(["camera", *names], lines)


def avoiding_methods() -> str:
    """Tabulate success and modes on obstacle avoidance, the largest success × entropy first."""
    head = ["method", "training steps", "n", "success", "modes", "entropy", "success × entropy"]
    head += ["− Neural SDE", "calls"]
    lines = []
    comparisons = [msgspec.convert(read(file)["avoiding"], Comparison) for file in ("tasks", "tasks_equal")]
    reference = comparisons[0].reference
    for comparison in comparisons:
        for row in list_main_rows(comparison):
            modes = ", ".join(str(each.distinct_modes) for each in row.trainings)
            estimates = [row.success, row.entropy or NONE, row.product]
            if _repeats_one_path(row):
                estimates = [each if each == NONE else f"{each.value:.3f}" for each in estimates]
            success, entropy, product = estimates
            cells = [row.label, f"{row.first.train_steps:,}", row.episodes, success, modes]
            difference = _format_difference(row, reference, "product")
            cells += [entropy, product, difference, f"{row.calls_per_chunk:g}"]
            lines.append((row.product.value if row.product else 0.0, cells))
    unique = {tuple(map(str, cells[:7])): (value, cells) for value, cells in reversed(lines)}
    ordered = sorted(unique.values(), key=lambda line: -line[0])
    return markdown(head, [cells for _, cells in ordered])


def _repeats_one_path(row: Row) -> bool:
    """Return whether all episodes of each training are the same, so that an interval would mean nothing."""
    outcomes = [zip(each.score, each.steps, each.mode or each.steps, strict=True) for each in row.trainings]
    return all(len(set(training)) == 1 for training in outcomes)


def adroit_methods() -> str:
    """Tabulate success of every method on the four Adroit tasks."""
    stored = read("tasks")
    tasks = {name: msgspec.convert(stored[f"adroit-{name}"], Comparison) for name in ADROIT}
    rows = {name: {row.label: row for row in list_main_rows(each)} for name, each in tasks.items()}
    lines = []
    for label in rows["door"]:
        if not label.endswith(UNCOMPARED):
            own = [rows[name][label] for name in ADROIT]
            cells = [label, own[0].episodes, *(row.success for row in own)]
            lines.append([*cells, f"{own[0].calls_per_chunk:g}"])
    lines.sort(key=lambda line: -sum(estimate.value for estimate in line[2:6]))
    return markdown(["method", "n per task", *ADROIT, "calls"], lines)


def metaworld() -> str:
    """Tabulate success of the preset `auto` on Meta-World."""
    comparisons = [msgspec.convert(stored, Comparison) for stored in read("metaworld").values()]
    lines: list[Sequence[Any]] = []
    for comparison in comparisons:
        (row,) = list_main_rows(comparison)
        seeds = ", ".join(f"{value:.2f}" for value in row.means_by_seed("success").values())
        lines.append([comparison.task.partition(":")[2], row.success, seeds])
    # All tasks are rolled out on the same seeds, so seeds are resampled with their episodes in all tasks.
    success = [entry.episodes.success for each in comparisons for entry in each.entries]
    lines.append(["**mean**", mean(np.mean(success, axis=0)), ""])
    return markdown(["task", "success", "by training"], lines)


def metaworld_camera() -> str:
    """Tabulate success on all tasks of Meta-World from one camera."""
    stored = read("metaworld_camera")
    return tabulate_tasks({task: msgspec.convert(each, Comparison) for task, each in stored.items()})


def auto_tasks() -> str:
    """Tabulate the preset `auto` on seven tasks."""
    lines = []
    for task, runs in group(read("auto_settings"), lambda row: row["task"]).items():
        reported = [run["successes"] for run in runs if run["successes"]]
        success = pool_success(reported) if reported else NONE
        lines.append([task, f"{runs[0]['steps']:,}", success, pool([run["scores"] for run in runs])])
    return markdown(["task", "training steps", "success", "score"], lines)


def arm_cameras() -> str:
    """Tabulate a simulated arm with two cameras: training on a CPU, and driving without one of them."""
    head = ["training", "seconds", "error 16 periods ahead ÷ repeating", "lost camera", "delivered"]
    head += ["commands", "without that camera", "outside limits"]
    lines = []
    for name, stored in read("arm_cameras").items():
        errors, (delivered, trials) = stored["errors"], stored.get("delivered", (0, 0))
        driven = stored.get("lost") or {"none": {"delivered": delivered, "trials": trials}}
        shown = [name, f"{stored['seconds']:.0f}", f"{errors['sample'][1] / errors['repeat'][1]:.2f}"]
        for camera, counts in driven.items():
            cells = [counts.get(key, NONE) for key in ("commands", "without_camera", "outside")]
            lines.append([*shown, camera, f"{counts['delivered']} of {counts['trials']}", *cells])
    return markdown(head, lines)


def tuned() -> str:
    """Tabulate what `tune` found, against settings that were tuned by hand."""
    lines = []
    for task, stored in read("tune").items():
        rows = list_main_rows(msgspec.convert(stored, Comparison))
        by_hand = next(row for row in rows if row.first.name == "by hand")
        for row in rows:
            scores = {"success × entropy": row.product, "success": row.success, "return": row.score}
            name, score = next((name, each) for name, each in scores.items() if each is not None)
            column = {"success × entropy": "product", "return": "score"}.get(name, name)
            difference = _format_difference(row, by_hand, column)
            lines.append([task, row.first.name, name, row.episodes, score, difference])
    return markdown(["task", "settings", "score", "n", "value", "− by hand"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "pusht_methods": pusht_methods,
    "pusht_treatments": pusht_treatments,
    "pusht_disturbances": pusht_disturbances,
    "pusht_settings": pusht_settings,
    "pixels_methods": pixels_methods,
    "pixels_disturbances": pixels_disturbances,
    "avoiding_methods": avoiding_methods,
    "adroit_methods": adroit_methods,
    "metaworld": metaworld,
    "metaworld_camera": metaworld_camera,
    "auto_tasks": auto_tasks,
    "arm_cameras": arm_cameras,
    "tuned": tuned,
}
