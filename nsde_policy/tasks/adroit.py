"""Adroit hand: door, hammer, pen and relocate of gymnasium-robotics, simulated by MuJoCo (extra `adroit`)."""

import contextlib
import io
from collections.abc import Mapping

from nsde_policy.errors import import_optional

from .base import Reporting, Task
from .environments import AnyEnv
from .registry import TASKS

GOALS = {
    "door": "the door is open by 1.35 rad",
    "hammer": "the nail is less than 1 cm from its goal",
    "pen": "the pen is less than 7.5 cm from its goal, and the cosine of the angle between them above 0.95",
    "relocate": "the ball is less than 10 cm from its goal",
}
"""The environments' own criteria of success, by the name of the task."""
PEN_STEPS = 100
"""Length of an episode of the pen, as in D4RL and in the expert's episodes."""


class AdroitTask(Task):
    """A task of the hand, such as "door"; success is what the environment reports, after any step."""

    rate_hz = 100.0

    def __init__(self, member: str, env_kwargs: Mapping[str, object]) -> None:
        self.name = f"adroit-{member}"
        self.env_id = f"AdroitHand{member.title()}-v1"
        self.env_kwargs = env_kwargs
        note = f"Success: {GOALS[member]}, after any step. Return: the sum of an episode's rewards."
        self.reporting = Reporting(title=f"Adroit {member}", score_note=note)

    def make_env(self, **kwargs: object) -> AnyEnv:
        """Make the environment, after its package has registered it."""
        import_optional("mujoco", "adroit")
        with contextlib.redirect_stderr(io.StringIO()):  # a notice on older versions, in every process
            import_optional("gymnasium_robotics", "adroit")
        return super().make_env(**kwargs)


for _member in GOALS:
    _kwargs = {"max_episode_steps": PEN_STEPS} if _member == "pen" else {}
    TASKS.add(f"adroit-{_member}", AdroitTask(_member, _kwargs), module=__name__)
