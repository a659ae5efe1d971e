"""Suite of a task: train its methods, see `TrainingDefaults.suite`, and find the preset of a run."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nsde_policy.assets import USUAL_OBSERVATIONS
from nsde_policy.errors import ConfigError
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunRecord
from nsde_policy.tasks import SuiteMember, Task, find_task, get_task, with_observations
from nsde_policy.training.presets import resolve_preset
from nsde_policy.training.progress import train


def list_members(task: Task, preset: str = "default") -> list[SuiteMember]:
    """List the members of a task's suite; with another preset, every method once with that preset."""
    if preset == "default":
        return list(task.training.suite())
    methods = dict.fromkeys(each.method for each in task.training.suite())
    return [SuiteMember(method, preset) for method in methods]


def train_suite(
    task: Task,
    out: Path,
    *,
    preset: str,
    seeds: range,
    demos: Path | None,
    accept_omitted_chunks: bool = False,
    device: str,
) -> Iterator[tuple[SuiteMember, Path]]:
    """Train the members into OUT/METHOD-PRESET-SEED; skip finished trainings, resume interrupted ones."""
    found = find_task(demos)
    env_kwargs = dict(found.env_kwargs) if found.name == task.name else {}
    selection = {"accept_omitted_chunks": accept_omitted_chunks}
    for member in list_members(task, preset):
        _, config = resolve_preset(task, member.preset, member.method, demos=demos, selection=selection)
        config = config.replace_parts(demos=selection)
        for seed in seeds:
            run = train(
                demos,
                config,
                out / f"{member.method}-{member.preset}-{seed}",
                task=task.name,
                env_kwargs=env_kwargs,
                seed=seed,
                device=device,
                resume=True,
                eval_every=0,
                tensorboard=False,
            )
            yield member, run.path


def find_preset(record: RunRecord) -> str:
    """Return the preset that a run was trained with, on any number of demonstrations; "" if there is none."""
    task, method = get_task(record.task, package=record.plugins.get("task")), record.config.method
    settings = ignore_demo_count(record.config)
    observations = (USUAL_OBSERVATIONS, *task.training.observations)
    for name, obs in itertools.product(task.training.presets(method), observations):
        try:
            preset = with_observations(task, obs).preset(name, method)
        except ConfigError:
            continue  # a preset for other observations
        measured = {"first_action_from": settings.demos.first_action_from}  # in the preset, None or the same
        if preset.demos.first_action_from is None:
            preset = preset.replace_parts(demos=measured)
        if preset == settings:
            return name
    return ""


def ignore_demo_count(config: RunConfig) -> RunConfig:
    """Return the same settings with all demonstrations, without what training measures on them."""
    demos = replace(config.demos, episodes=0, first_action=(), accept_omitted_chunks=False)
    return replace(config, demos=demos)
