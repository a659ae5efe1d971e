"""Meta-World: 50 tasks of a robot arm, `metaworld:reach-v3` and others (extra `metaworld`)."""

from typing import Any

import gymnasium as gym
import numpy as np

from nsde_policy.errors import ConfigError, import_optional

from .base import Reporting, Task
from .environments import AnyEnv, make_gym_env
from .registry import TASKS

MEMBERS = """
assembly basketball bin-picking box-close button-press button-press-topdown button-press-topdown-wall
button-press-wall coffee-button coffee-pull coffee-push dial-turn disassemble door-close door-lock door-open
door-unlock drawer-close drawer-open faucet-close faucet-open hammer hand-insert handle-press
handle-press-side handle-pull handle-pull-side lever-pull peg-insert-side peg-unplug-side pick-out-of-hole
pick-place pick-place-wall plate-slide plate-slide-back plate-slide-back-side plate-slide-side push push-back
push-wall reach reach-wall shelf-place soccer stick-pull stick-push sweep sweep-into window-close window-open
"""
CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
"""Names of Meta-World's cameras; it would draw another view for any other name."""
EPISODE_STEPS = 500
"""Steps after which Meta-World's own environments end."""


class MetaWorldEnv(gym.Wrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """A Meta-World environment that draws its start from the seed of `reset`, and ends at success.

    Its own `reset` ignores the seed, and its own episodes last 500 steps. The observation, (39,), includes
    the goal, which Meta-World hides by default. `camera_name` is one of `CAMERAS`; `kwargs` are
    `render_mode`, `width` and `height`.
    """

    def __init__(self, member: str, camera_name: str = "corner2", **kwargs: object) -> None:
        if camera_name not in CAMERAS:
            raise ConfigError(
                f"Meta-World has no camera {camera_name!r}, expected one of {', '.join(CAMERAS)}; change "
                "camera_name in --env-kwargs"
            )
        environments = import_optional("metaworld", "metaworld").ALL_V3_ENVIRONMENTS
        inner = environments[member](camera_name=camera_name, **kwargs)
        inner._partially_observable, inner._set_task_called = False, True
        inner.seeded_rand_vec = True
        del inner.sawyer_observation_space  # a cached property, made without the goal
        inner.observation_space = inner.sawyer_observation_space
        super().__init__(inner)
        self._upside_down = camera_name.startswith("corner")

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        """Start an episode with new places of the object and the goal, drawn from the seed.

        They are drawn by one reset and kept by a second one, as Meta-World's benchmarks do: the observation
        of the first shows where the object was before.
        """
        inner: Any = self.unwrapped
        if seed is not None:
            inner.seed(seed)
        inner._freeze_rand_vec = False
        self.env.reset()
        inner._freeze_rand_vec = True
        return self.env.reset()

    def render(self) -> Any:
        """Return the picture of the camera, upright."""
        picture: Any = self.env.render()
        return picture[::-1, ::-1] if self._upside_down else picture

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Execute an action; the episode ends if it succeeds."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward), terminated or bool(info["success"]), truncated, info


class MetaWorldTask(Task):
    """A task of Meta-World, such as "reach-v3"; success is what its environment reports."""

    reporting = Reporting(
        score_note="Success: Meta-World's own criterion, within 500 steps. Return: the sum of rewards up to "
        "then."
    )

    def __init__(self, member: str) -> None:
        self.member = member
        self.name = self.env_id = f"metaworld:{member}"

    def make_env(self, **kwargs: object) -> AnyEnv:
        """Make the environment; raise `MissingDependencyError` if Meta-World is not installed."""
        import_optional("metaworld", "metaworld")
        arguments = {"max_episode_steps": EPISODE_STEPS, **self.env_kwargs, **kwargs, "member": self.member}
        return make_gym_env(f"{__name__}:{MetaWorldEnv.__name__}", arguments)


for _name in MEMBERS.split():
    TASKS.add(f"metaworld:{_name}-v3", MetaWorldTask(f"{_name}-v3"), module=__name__)
