"""What the environment of a task adds to its demonstrations: sizes, rate and limits of actions."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import ConfigError, EnvError, NsdePolicyError
from nsde_policy.tasks.base import Task, with_env_kwargs
from nsde_policy.tasks.gym import close_env, find_rate, open_env, run_env_code
from nsde_policy.tasks.registry import get_task
from nsde_policy.training.dataset import check_task_sizes

logger = logging.getLogger(__name__)


def add_environment(
    demos: Demonstrations, name: str, env_kwargs: Mapping[str, object], obs_keys: Sequence[str], chunk: int
) -> Demonstrations:
    """Return the demonstrations with the environment's rate and limits of actions, where they record none.

    They are returned as they are if the task has no environment, or it cannot be made here.

    Raises:
        ConfigError: If observations or actions of the environment have other sizes, or cannot be used, or
            its episodes are known to be shorter than a chunk of actions.
    """
    task = with_env_kwargs(get_task(name), env_kwargs)
    if task.env_id is None:
        return demos
    from nsde_policy.tasks.adapter import EnvAdapter

    try:
        env = open_env(task)
    except NsdePolicyError as error:
        logger.info("rate, sizes and limits of actions come from the demonstrations alone: %s", error)
        return demos
    try:
        with run_env_code(f"environment {task.env_id}: its spec"):
            limit = int(env.spec.max_episode_steps or 0) if env.spec else 0
        if limit and chunk > limit:
            raise ConfigError(
                f"--chunk is {chunk}, but episodes of {task.name} end after {limit} steps: choose fewer"
            )
        adapter = EnvAdapter(env, task.env_id, obs_keys=obs_keys, obs_dim=demos.obs.shape[1])
        check_task_sizes(demos, task.name, (adapter.obs_dim, adapter.act_dim))
        limits = tuple(adapter.low.tolist()), tuple(adapter.high.tolist())
        return replace(
            demos,
            rate_hz=demos.rate_hz or find_rate(task, env),
            act_limits=demos.act_limits or limits,
        )
    except EnvError as error:
        raise ConfigError(f"{error}; --task none trains without a task") from None
    finally:
        close_env(env)


def find_env_rate(task: Task) -> float | None:
    """Return the control periods per second of a task or its environment, None if nothing says."""
    if task.rate_hz or task.env_id is None:
        return task.rate_hz
    try:
        env = open_env(task)
    except NsdePolicyError:
        return None
    try:
        return find_rate(task, env)
    finally:
        close_env(env)
