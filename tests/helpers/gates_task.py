"""A task with modes: a point moves to the right through one of three gates."""

from typing import Any

import gymnasium as gym
import numpy as np

from nsde_policy.data import Demonstrations, Episode
from nsde_policy.tasks import Reporting, Task, register_task
from tests.helpers.episodes import join_episodes

GATES = (-0.5, 0.0, 0.5)
STEPS = 20


class GatesEnv(gym.Env[np.ndarray, np.ndarray]):
    """A point that moves by its action; it has to pass x = 1 within 0.2 of the height of a gate."""

    def __init__(self, mode: Any = None) -> None:
        self.observation_space = gym.spaces.Box(-9.0, 9.0, (3,), np.float64)
        self.action_space = gym.spaces.Box(-0.2, 0.2, (2,), np.float64)
        self._mode = mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._at = np.zeros(2)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> Any:
        self._at = self._at + action
        mode = int(np.argmin(np.abs(self._at[1] - np.array(GATES))))
        success = bool(self._at[0] >= 1 - 1e-6 and abs(self._at[1] - GATES[mode]) <= 0.2)
        info = {"success": success, "mode": mode if self._mode is None else self._mode}
        return self._observe(), float(success), bool(self._at[0] >= 1 - 1e-6), False, info

    def _observe(self) -> np.ndarray:
        return np.array([*self._at, 1.0])


gym.register("Gates-v0", GatesEnv, max_episode_steps=2 * STEPS)


@register_task
class GatesTask(Task):
    """Move a point through one of three gates."""

    name = "gates"
    env_id = "Gates-v0"
    reporting = Reporting(modes=3)


def demonstrate_gates(episodes: int = 30) -> Demonstrations:
    """Move through the gates in turn, each time on a slightly different path."""
    rng, found = np.random.default_rng(0), []
    for i in range(episodes):
        x = np.linspace(0, 1, STEPS + 1)
        y = (GATES[i % 3] + rng.uniform(-0.1, 0.1)) * x
        path = np.stack([x, y, np.ones_like(x)], axis=1)
        found.append(Episode(path[:-1].astype(np.float32), np.diff(path[:, :2], axis=0).astype(np.float32)))
    return join_episodes(found)
