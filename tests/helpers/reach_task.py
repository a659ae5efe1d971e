"""A task in one file, as a third party would write it: move a point to the origin."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from nsde_policy.data import Demonstrations, Episode
from nsde_policy.tasks import Outcome, Task, register_task

REACHED = 0.15


class ReachEnv(gym.Env[np.ndarray, np.ndarray]):
    """A point in the plane that moves by its action; the reward is minus its distance to the origin."""

    def __init__(self, reach: float = 1.0) -> None:
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float64)
        self.action_space = gym.spaces.Box(-0.2, 0.2, (2,), np.float64)
        self._reach = reach

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        angle = self.np_random.uniform(0, 2 * np.pi)
        self._at = self._reach * np.array([np.cos(angle), np.sin(angle)])
        return self._at.copy(), self._info()

    def step(self, action: np.ndarray) -> Any:
        self._at = self._at + action
        return self._at.copy(), -self._info()["distance"], self._info()["success"], False, self._info()

    def _info(self) -> dict[str, Any]:
        distance = float(np.linalg.norm(self._at))
        return {"distance": distance, "success": distance < REACHED}


gym.register("Reach-v0", ReachEnv, max_episode_steps=30)


@register_task
class ReachTask(Task):
    """Move a point to the origin."""

    name = "reach"
    env_id = "Reach-v0"
    score_name = "min_distance"

    def outcome(self, rewards: Sequence[float], infos: Sequence[Mapping[str, Any]]) -> Outcome:
        distances = [info["distance"] for info in infos]
        return Outcome(infos[-1]["success"], min(distances), {"final_distance": distances[-1]})


def demonstrate(episodes: int = 90) -> Demonstrations:
    """Move straight to the origin from starts on a circle."""
    starts = np.linspace(0, 2 * np.pi, episodes, endpoint=False)
    radii = np.linspace(1.0, 0.0, 11)
    paths = [np.outer(radii, [np.cos(angle), np.sin(angle)]) for angle in starts]
    return Demonstrations.from_episodes(
        [Episode(path[:-1].astype(np.float32), np.diff(path, axis=0).astype(np.float32)) for path in paths]
    )
