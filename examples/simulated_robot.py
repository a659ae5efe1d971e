"""Simulated robot for the examples: Push-T that keeps moving in real time while a control loop computes."""

import math

import numpy as np

from nsde_policy.envs.pusht.dynamics import PHYSICS_HZ
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.envs.pusht.geometry import SUCCESS_COVERAGE

EPISODE_S = 30.0
"""Length of an episode in seconds: 300 control periods of the benchmark."""
STEPS_PER_REWARD = PHYSICS_HZ // 10


class SimulatedPushT:
    """Push-T whose agent follows the last command until the next one arrives.

    Physics runs at 100 Hz as in the benchmark; a command takes effect in the next physics step.
    """

    def __init__(self) -> None:
        self._env = PushTEnv()
        self.reset(seed=0)

    def reset(self, *, seed: int) -> None:
        """Start the benchmark's episode of a seed at time 0."""
        obs, self._info = self._env.reset(seed=seed)
        self._obs: np.ndarray = np.asarray(obs)
        self._command = self._obs[:2].copy()
        self._steps = 0
        self.time = 0.0
        """Simulated seconds since the start."""
        self.max_reward = 0.0

    @property
    def success(self) -> bool:
        """Whether the goal was covered when the reward was last computed; this ends the episode."""
        return bool(self._info["success"])

    @property
    def ended(self) -> bool:
        """Whether the episode succeeded or timed out."""
        return self.success or self.time >= EPISODE_S - 1e-9

    def observe(self) -> np.ndarray:
        """Return the current [agent x, y, block x, y, angle]."""
        return self._obs.copy()

    def send(self, command: np.ndarray) -> None:
        """Set the command, in force until the next one."""
        self._command = np.array(command)

    def advance(self, seconds: float) -> None:
        """Simulate; the reward is computed ten times a second, as in the benchmark."""
        self.time += seconds
        due = math.floor(self.time * PHYSICS_HZ + 1e-6)
        while self._steps < due and not self.success:
            to_reward = STEPS_PER_REWARD - self._steps % STEPS_PER_REWARD
            steps = min(due - self._steps, to_reward)
            obs, info = self._env.advance(self._command, steps)
            self._obs = np.asarray(obs)
            self._steps += steps
            if steps == to_reward:
                self._info = info
                self.max_reward = max(self.max_reward, min(info["coverage"] / SUCCESS_COVERAGE, 1.0))
        self._steps = max(self._steps, due)


if __name__ == "__main__":
    print(__doc__)
