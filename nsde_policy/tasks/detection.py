"""Detection of the task that demonstrations belong to, from what their store records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nsde_policy.assets import EMBEDDED_DEMOS, SHIPPED_TASK
from nsde_policy.errors import ConfigError, DemoError

from .base import Task
from .environments import is_env_id
from .registry import TASKS, get_recorded_task

NO_TASK, OWN_ROBOT = "none", "your own robot (no task)"
"""Name of the task of demonstrations without an environment, and what people call it."""


@dataclass(frozen=True)
class FoundTask:
    """A task found for demonstrations, and the reason in one line."""

    name: str
    reason: str
    env_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment that the store records."""
    env_id: str | None = None
    """Environment that the store records, even if it is not available."""


def find_task(demos: Path | None) -> FoundTask:
    """Find the task of demonstrations; None stands for those embedded in the package.

    A store records its task in the root attribute `task`, `made_with` (as `nsde-policy collect` writes it) or
    `env_id`. Public demonstrations of a task are recognised by their content.
    """
    if demos is None or demos == EMBEDDED_DEMOS:
        reason = f"task {SHIPPED_TASK}: the demonstrations of the package"
        return FoundTask(SHIPPED_TASK, reason, env_id=TASKS.get(SHIPPED_TASK).env_id)
    from nsde_policy.data.readers import open_source

    with open_source(demos) as source:
        attributes, frames = source.attributes, int(source.read_ends().max(initial=0))
    made_with = _as_mapping(attributes.get("made_with"))
    records = (attributes.get("task"), made_with.get("task"), made_with.get("env"), attributes.get("env_id"))
    recorded = next((record for record in records if isinstance(record, str)), None)
    if recorded is not None:
        try:
            task = get_recorded_task(recorded, _as_mapping(made_with.get("env_kwargs")))
        except ConfigError as error:
            problem = f"{demos} records the task {recorded!r:.80}, which is not available ({error})"
            env_id = recorded if is_env_id(recorded) else None
            return FoundTask(NO_TASK, f"{OWN_ROBOT}: {problem}", env_id=env_id)
        env_kwargs = task.training.without_observations(_as_mapping(made_with.get("env_kwargs")))
        return FoundTask(task.name, f"task {task.name}: recorded in {demos}", env_kwargs, task.env_id)
    for task in TASKS.load_all().values():
        if _is_public(task, demos, frames):
            reason = f"task {task.name}: {demos} holds its public demonstrations"
            return FoundTask(task.name, reason, env_id=task.env_id)
    return FoundTask(
        NO_TASK, f"{OWN_ROBOT}: {demos}; --env ID or --task NAME names an environment to evaluate in"
    )


def check_recorded_task(task: Task, demos: Path) -> None:
    """Raise `ConfigError` if demonstrations were not recorded in the environment of a task.

    Demonstrations without a record fit any task. If the store cannot be read, it is a `DemoError`.
    """
    if task.env_id is None:
        return
    recorded = find_task(demos)
    if recorded.env_id not in (None, task.env_id):
        raise ConfigError(
            f"{demos} was made in the environment {recorded.env_id}, expected {task.env_id} of the task "
            f"{task.name}; leave out --task and --env to use the recorded one, or train with --task none "
            "and give --env to eval"
        )


def _as_mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _is_public(task: Task, path: Path, frames: int) -> bool:
    """Return whether a store holds a task's public demonstrations; reads them only if their number fits."""
    public = task.training.public_demos
    if public is None or frames != public.frames:
        return False
    from nsde_policy.data import load_demonstrations

    settings = task.training.demos
    try:
        demos = load_demonstrations(
            path, obs_keys=settings.obs_keys, act_key=settings.act_key, angles=public.angles
        )
    except DemoError:
        return False
    return demos.fingerprint == public.fingerprint
