"""Push-T on the live page: the agent follows a policy or the pointer, the block can be dragged."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from nsde_policy.envs.page import PageMap
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.envs.pusht.dynamics import STEPS_PER_PERIOD
from nsde_policy.envs.pusht.env import PushTEnv, ResetRule
from nsde_policy.envs.pusht.geometry import SIDE, Pose


class PushTTable:
    """A Push-T episode for the live page; see `nsde_policy/tasks/live_table.py`."""

    sizes: Collection[tuple[int, int, int]] = ((5, 0, 2), (2, 1, 2))
    page = PageMap()
    unit = ("px", 1.0)
    agent = moved = slice(0, 2)
    moves_action = True
    longest_s = 120.0
    texts: Mapping[str, str] = {
        "agent": "agent",
        "goal": "goal; solved above 95 %",
        "progress": "coverage",
        "threshold": "95 % of the goal covered",
        "tagline": "Drag the block away. Watch it recover.",
        "record": "Push the T onto its outline.",
        "failed": "failed",
        "help": "Drag the block with mouse or finger; turn it with its round handle, the wheel or Shift. "
        "Drag the agent and it follows the pointer instead of its policy.",
    }

    def __init__(self, reset_rule: ResetRule) -> None:
        self._env = PushTEnv(reset_rule=reset_rule)
        self._state = np.zeros(5)

    def start(self, **arguments: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset the environment with these arguments."""
        obs, info = self._env.reset(**arguments)
        self._state = np.asarray(obs)
        return self._state, info

    def advance(
        self, action: Sequence[float], dragged: Sequence[float] | None = None
    ) -> tuple[list[np.ndarray], float, bool, dict[str, Any]]:
        """Run one control period in physics steps; a dragged block is held on its way to the pose."""
        target, trail = np.array(action), []
        poses = _interpolate_poses(self._state[2:].tolist(), dragged) if dragged is not None else None
        for step in range(STEPS_PER_PERIOD):
            if poses:
                self._env.hold_block(poses[step])
            obs, info = self._env.advance(target, 1)
            trail.append(np.asarray(obs))
        self._state = trail[-1]
        return trail, self._env.find_reward(info), info["success"], info

    def restart_arguments(self, state: np.ndarray) -> dict[str, Any]:
        """Return arguments of a reset to the poses of a state, at rest and within the table."""
        state = state.copy()
        state[:2] = np.clip(state[:2], 0.0, SIDE)
        state[2:4] = np.clip(state[2:4], -256.0, 768.0)
        return {"options": {"state": [float(x) for x in state]}}

    def command_point(self, state: np.ndarray, point: Sequence[float]) -> tuple[float, ...]:
        """Return the action that sends the agent to a position: the position itself."""
        return self.clip(point)

    def clip(self, action: Sequence[float]) -> tuple[float, ...]:
        """Return an action within the table."""
        return tuple(min(max(float(value), 0.0), SIDE) for value in action)

    def find_targets(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the positions that actions (n, 2) command in turn."""
        return actions

    def find_target(self, state: np.ndarray, last_action: np.ndarray) -> np.ndarray:
        """Return the commanded position: the last action."""
        return last_action

    def describe(self, state: np.ndarray) -> list[float]:
        """Return agent x, y, block x, y and angle, rounded."""
        return [round(value, 2) for value in state[:4].tolist()] + [round(float(state[4]), 4)]

    def measure(self, state: np.ndarray) -> np.ndarray:
        """Return what a policy with a camera measures: the agent."""
        return state[:2]

    def draw_camera(self, state: np.ndarray, width: int, height: int) -> np.ndarray:
        """Draw what a camera sees, as the environment does, (height, width, 3) uint8."""
        return benchmark_frame(state[:2].tolist(), state[2:].tolist(), width, height)


def _interpolate_poses(start: Sequence[float], end: Sequence[float]) -> list[Pose]:
    """Return one pose of the block per physics step, with the angle going the short way round."""
    turn = math.remainder(end[2] - start[2], 2 * math.pi)
    shares = [(step + 1) / STEPS_PER_PERIOD for step in range(STEPS_PER_PERIOD)]
    return [
        (start[0] + s * (end[0] - start[0]), start[1] + s * (end[1] - start[1]), start[2] + s * turn)
        for s in shares
    ]
