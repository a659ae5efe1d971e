"""Push-T on the live page: the agent follows a policy or the pointer, the block can be dragged."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..live import LiveTable, TableStep
from .drawing import benchmark_frame
from .dynamics import STEPS_PER_PERIOD
from .env import PushTEnv, ResetRule
from .geometry import SIDE


class PushTTable(LiveTable):
    """A Push-T episode for the live page."""

    agent = slice(0, 2)
    limits = (0.0, SIDE)
    longest_s = 120.0
    texts: ClassVar[Mapping[str, str]] = {
        "agent": "agent",
        "goal": "goal; solved above 95 %",
        "progress": "coverage",
        "threshold": "95 % of the goal covered",
        "tagline": "Drag the block away. Watch it recover.",
        "record": "Push the T onto its outline.",
        "failed": "failed",
    }

    def __init__(self, reset_rule: ResetRule) -> None:
        self._env = PushTEnv(reset_rule=reset_rule)
        self._state = np.zeros(5)

    def start(self, seed: int) -> tuple[np.ndarray, Mapping[str, object]]:
        """Reset the environment."""
        obs, info = self._env.reset(seed=seed)
        self._state = np.asarray(obs)
        return self._state, info

    def advance(self, action: np.ndarray, dragged: np.ndarray | None = None) -> TableStep:
        """Run one control period in physics steps; a dragged block is held on its way to the pose."""
        poses = None if dragged is None else _interpolate_poses(self._state[2:], dragged)
        states = []
        for step in range(STEPS_PER_PERIOD):
            if poses is not None:
                self._env.hold_block(poses[step])
            obs, info = self._env.advance(action, 1)
            states.append(np.asarray(obs))
        self._state = states[-1]
        return TableStep(states, self._env.find_reward(), bool(info["success"]), info)

    def command_point(self, state: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Return the action that sends the agent to a position: the position itself."""
        return self.clip(point)

    def find_targets(self, state: np.ndarray, last_action: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the actions, which are positions."""
        return np.vstack([last_action, actions])

    def describe(self, state: np.ndarray) -> list[float]:
        """Return agent x, y, block x, y and angle, rounded."""
        return [round(value, 2) for value in state[:4].tolist()] + [round(float(state[4]), 4)]

    def measure(self, state: np.ndarray) -> np.ndarray:
        """Return what a policy with a camera measures: the agent."""
        return state[:2]

    def draw_camera(self, state: np.ndarray, width: int, height: int) -> np.ndarray:
        """Draw what a camera sees, as the environment does, (height, width, 3) uint8."""
        return benchmark_frame(state[:2].tolist(), state[2:].tolist(), width, height)


def _interpolate_poses(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return one pose of the block per physics step, (steps, 3), with the angle going the short way round."""
    way = end - start
    way[2] = math.remainder(way[2], 2 * math.pi)
    shares = np.arange(1, STEPS_PER_PERIOD + 1)[:, None] / STEPS_PER_PERIOD
    poses: np.ndarray = start + shares * way
    return poses
