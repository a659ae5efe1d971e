"""Adroit hand: door, hammer, pen and relocate of gymnasium-robotics, simulated by MuJoCo (extra `adroit`)."""

import contextlib
import io
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nsde_policy.tasks.base import Task
from nsde_policy.tasks.gym import import_simulator
from nsde_policy.tasks.registry import register_task
from nsde_policy.tasks.reporting import Reporting

if TYPE_CHECKING:
    import gymnasium as gym


class AdroitTask(Task):
    """A task of the hand; success is what the environment reports, after any step of an episode."""

    rate_hz = 100.0

    def make_env(self, **kwargs: Any) -> "gym.Env[Any, Any]":
        """Make the environment, after its package has registered it.

        Raises:
            MissingDependencyError: If gymnasium-robotics or MuJoCo is not installed.
        """
        import_simulator("mujoco", "adroit")
        with contextlib.redirect_stderr(io.StringIO()):  # a notice on older versions, in every process
            import_simulator("gymnasium_robotics", "adroit")
        env = super().make_env(**kwargs)
        if kwargs.get("render_mode"):
            _fix_camera(env)
        return env


def _fix_camera(env: "gym.Env[Any, Any]") -> None:
    """Aim the camera at the scene of a start; by default it aims at the scene of the first picture drawn."""
    import numpy as np

    env.reset(seed=0)
    inner: Any = env.unwrapped
    centre = np.median(inner.data.geom_xpos, axis=0)
    inner.mujoco_renderer.default_cam_config = {**inner.mujoco_renderer.default_cam_config, "lookat": centre}


def _report(title: str, goal: str) -> Reporting:
    """Return the words for tables, given the environment's own criterion of success."""
    note = f"Success: {goal}, after any step. Return: the sum of an episode's rewards."
    return Reporting(title=title, score_note=note)


@register_task
class AdroitDoor(AdroitTask):
    """Turn the handle of a door and open it."""

    name = "adroit-door"
    env_id = "AdroitHandDoor-v1"
    reporting = _report("Adroit door", "the door is open by 1.35 rad")


@register_task
class AdroitHammer(AdroitTask):
    """Take a hammer and drive a nail into a board."""

    name = "adroit-hammer"
    env_id = "AdroitHandHammer-v1"
    reporting = _report("Adroit hammer", "the nail is less than 1 cm from its goal")


@register_task
class AdroitPen(AdroitTask):
    """Turn a pen in the hand to a given direction, within 100 steps as in D4RL and the expert's episodes."""

    name = "adroit-pen"
    env_id = "AdroitHandPen-v1"
    env_kwargs = MappingProxyType({"max_episode_steps": 100})
    reporting = _report(
        "Adroit pen",
        "the pen is less than 7.5 cm from its goal, and the cosine of the angle between them above 0.95",
    )


@register_task
class AdroitRelocate(AdroitTask):
    """Carry a ball to a given place in the air."""

    name = "adroit-relocate"
    env_id = "AdroitHandRelocate-v1"
    reporting = _report("Adroit relocate", "the ball is less than 10 cm from its goal")
