"""A simulated robot that runs on its own while a control loop thinks: Push-T with a clock."""

import math

import numpy as np

from nsde_policy.envs.pusht.dynamics import PHYSICS_HZ
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.envs.pusht.geometry import SUCCESS_COVERAGE

EPISODE_S = 30.0
"""300 control periods of the benchmark, seconds."""


class SimulatedPushT:
    """The agent follows the last command that was sent, whether the next one comes or not.

    Physics runs at 100 Hz as in the benchmark; a command takes effect with the next step of it.
    """

    def __init__(self) -> None:
        self._env = PushTEnv()
        self.reset(seed=0)

    def reset(self, *, seed: int) -> None:
        """Start the benchmark's episode of that seed, at time 0."""
        observed, self._info = self._env.reset(seed=seed)
        self._obs: np.ndarray = np.asarray(observed)
        self._command = self._obs[:2].copy()
        self._steps = 0
        self.time = 0.0
        """Simulated seconds since the start."""
        self.max_reward = 0.0

    @property
    def success(self) -> bool:
        """Whether the goal was covered at the last look; the episode then is over."""
        return bool(self._info["success"])

    @property
    def ended(self) -> bool:
        """Whether it succeeded, or its time is up."""
        return self.success or self.time >= EPISODE_S - 1e-9

    def observe(self) -> np.ndarray:
        """[agent x, y, block x, y, angle] now."""
        return self._obs.copy()

    def send(self, command: np.ndarray) -> None:
        """Take a command, in force until the next."""
        self._command = np.array(command)

    def advance(self, seconds: float) -> None:
        """Let time pass. As in the benchmark, the score is taken ten times a second."""
        self.time += seconds
        due = math.floor(self.time * PHYSICS_HZ + 1e-6)
        while self._steps < due and not self.success:
            to_look = PHYSICS_HZ // 10 - self._steps % (PHYSICS_HZ // 10)
            steps = min(due - self._steps, to_look)
            observed, info = self._env.advance(self._command, steps)
            self._obs = np.asarray(observed)
            self._steps += steps
            if steps == to_look:
                self._info = info
                self.max_reward = max(self.max_reward, min(info["coverage"] / SUCCESS_COVERAGE, 1.0))
        self._steps = max(self._steps, due)
