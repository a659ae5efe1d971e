"""Any Gymnasium environment as a task: a registered id such as `Pendulum-v1`, or `module:Class`."""

from __future__ import annotations

from collections.abc import Mapping

from .base import Reporting, Task
from .environments import AnyEnv, run_env_code


class GymTask(Task):
    """An environment without a task of its own: score is the return, success what its info says."""

    reporting = Reporting(score_note="Return: the sum of an episode's rewards.")

    def __init__(self, env_id: str) -> None:
        self.name = self.env_id = env_id


def open_env(task: Task, env_kwargs: Mapping[str, object] | None = None) -> AnyEnv:
    """Make the environment of a task; raise `EnvError` whatever its code raises."""
    with run_env_code(f"environment {task.env_id or task.name}: make_env"):
        return task.make_env(**(env_kwargs or {}))


def find_rate(task: Task, env: AnyEnv) -> float | None:
    """Return the control periods per second of an environment, None if unknown.

    They are `task.rate_hz`, else 1 / `env.unwrapped.dt`, else `env.metadata["render_fps"]`.
    """
    if task.rate_hz:
        return task.rate_hz
    with run_env_code(f"environment {task.env_id or task.name}: its rate (dt, metadata)"):
        if period := float(getattr(env.unwrapped, "dt", None) or 0.0):
            return 1.0 / period
        return float(env.metadata.get("render_fps") or 0.0) or None
