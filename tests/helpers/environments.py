"""Environments that users might have: dictionaries, pictures, other shapes, and broken ones."""

import os
from typing import Any

import gymnasium as gym
import numpy as np

IMAGE = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
ACTION = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


class DictEnv(gym.Env[Any, np.ndarray]):
    """A dictionary with a camera picture; success is reported by its second name, after the third step."""

    observation_space = gym.spaces.Dict(
        {
            "goal": gym.spaces.Box(-1.0, 1.0, (1,)),
            "pixels": IMAGE,
            "state": gym.spaces.Box(-1.0, 1.0, (2, 2)),
        }
    )
    action_space = ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> Any:
        self._steps += 1
        return self._observe(), 1.0, self._steps == 3, False, {"is_success": self._steps == 3}

    def _observe(self) -> dict[str, np.ndarray]:
        state = np.arange(4.0).reshape(2, 2) / 10
        return {"goal": np.ones(1), "pixels": np.zeros((8, 8, 3), np.uint8), "state": state}


class MatrixEnv(gym.Env[np.ndarray, np.ndarray]):
    """Observation and action are matrices, rewards are one; it can be rendered and never ends by itself."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32)
    action_space = gym.spaces.Box(-0.5, 0.5, (2, 1), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012, the name of Gymnasium

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, (2, 2)), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action)
        self.actions.append(action)
        return np.zeros((2, 2)), 1.0, False, False, {}

    def render(self) -> Any:
        return np.full((30, 60, 3), 100, np.uint8)


class BrokenEnv(gym.Env[Any, Any]):
    """Works for a few steps unless `fault` names what goes wrong."""

    def __init__(self, fault: str = "") -> None:
        if fault == "constructor":
            raise RuntimeError("no licence")
        self._fault, self._steps = fault, 0
        sizes = {"large_observation": (5,)}
        self.observation_space = gym.spaces.Box(-1.0, 1.0, sizes.get(fault, (4,)))
        self.action_space = {
            "discrete_action": gym.spaces.Discrete(3),
            "large_action": gym.spaces.Box(-1.0, 1.0, (3,)),
        }.get(fault, ACTION)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._fault == "reset":
            raise ValueError("the arm is not homed")
        return np.zeros(4), {}

    def step(self, action: np.ndarray) -> Any:
        self._steps += 1
        if self._steps < 3:
            return np.zeros(4), 0.0, False, False, {}
        faults: dict[str, Any] = {
            "four_values": (np.zeros(4), 0.0, False, {}),
            "text_success": (np.zeros(4), 0.0, True, False, {"success": "yes"}),
            "nan_observation": (np.array([0.0, np.nan, 0.0, 0.0]), 0.0, False, False, {}),
            "nan_reward": (np.zeros(4), float("nan"), False, False, {}),
            "endless": (np.zeros(4), 0.0, False, False, {}),
        }
        if self._fault == "step":
            raise ZeroDivisionError("division by zero")
        return faults.get(self._fault, (np.zeros(4), 0.0, True, False, {}))


class MortalEnv(gym.Env[np.ndarray, np.ndarray]):
    """Ends the process in its first step, as a crash in a C library does."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,))
    action_space = ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(3), {}

    def step(self, action: np.ndarray) -> Any:
        os._exit(1)
