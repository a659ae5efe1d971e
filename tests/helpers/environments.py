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


class PixelEnv(DictEnv):
    """The camera picture alone."""

    observation_space = IMAGE


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


class FloatPictureEnv(MatrixEnv):
    """Pictures with brightness from 0 to 1."""

    def render(self) -> Any:
        return np.zeros((30, 60, 3))


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
            "no_action_space": None,
        }.get(fault, ACTION)
        if fault == "discrete_observation":
            self.observation_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._fault == "reset":
            raise ValueError("the arm is not homed")
        if self._fault == "reset_seed":
            return self._reset_without_seed()
        obs = np.zeros(4)
        return {"no_info": obs, "info_list": (obs, [])}.get(self._fault, (obs, {}))

    def step(self, action: np.ndarray) -> Any:
        self._steps += 1
        if self._steps < 3:
            return np.zeros(4), 0.0, False, False, {}
        faults: dict[str, Any] = {
            "four_values": (np.zeros(4), 0.0, False, {}),
            "no_step_info": (np.zeros(4), 0.0, True, False, None),
            "text_success": (np.zeros(4), 0.0, True, False, {"success": "yes"}),
            "two_successes": (np.zeros(4), 0.0, True, False, {"success": np.array([True, False])}),
            "nan_observation": (np.array([0.0, np.nan, 0.0, 0.0]), 0.0, False, False, {}),
            "wrong_shape": (np.zeros((4, 1)), 0.0, False, False, {}),
            "text_observation": ("left", 0.0, False, False, {}),
            "text_reward": (np.zeros(4), "good", False, False, {}),
            "nan_reward": (np.zeros(4), float("nan"), False, False, {}),
            "endless": (np.zeros(4), 0.0, False, False, {}),
        }
        if self._fault == "step":
            raise ZeroDivisionError("division by zero")
        if self._fault == "exit":
            raise SystemExit(3)
        return faults.get(self._fault, (np.zeros(4), 0.0, True, False, {}))

    def _reset_without_seed(self, **options: None) -> Any:
        raise TypeError("reset() got an unexpected keyword argument 'seed'")


class MuteError(Exception):
    """An exception without a description."""

    def __str__(self) -> str:
        raise RuntimeError("no description")


class AngryArray:
    """A value that cannot be converted."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no numbers")


class MuteValue:
    """A value without a description."""

    def __repr__(self) -> str:
        raise RuntimeError("no description")


class AngryInfo(dict[str, Any]):
    """A dictionary that cannot be read."""

    def get(self, *args: Any) -> Any:
        raise RuntimeError("no info")


class OddEnv(MatrixEnv):
    """Ends after one step unless `fault` names what is odd about it."""

    def __init__(self, fault: str = "", render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self._fault = fault
        if fault == "metadata":
            self.metadata = None
        if fault == "modes":
            self.metadata = {"render_modes": 5}

    def _get_space(self, name: str, space: Any) -> Any:
        odd = {"no_spaces": None, "number_names": gym.spaces.Dict({1: ACTION, 2: ACTION})}
        if self._fault == name:
            raise RuntimeError("no space")
        return odd.get(self._fault, space)

    @property
    def observation_space(self) -> Any:
        return self._get_space("observation_space", MatrixEnv.observation_space)

    @property
    def action_space(self) -> Any:
        return self._get_space("action_space", MatrixEnv.action_space)

    @property
    def unwrapped(self) -> Any:
        if self._fault == "unwrapped":
            raise RuntimeError("no robot")
        return self

    @property
    def dt(self) -> float:
        if self._fault == "rate":
            raise SystemExit(7)
        return 0.0 if self._fault == "metadata" else 0.1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros((2, 2)), {}

    def step(self, action: np.ndarray) -> Any:
        if self._fault == "base_exception":
            raise GeneratorExit
        if self._fault == "mute_exception":
            raise MuteError
        obs, reward, ended, truncated, info = np.zeros((2, 2)), 1.0, True, False, {}
        odd: dict[str, Any] = {
            "two_ends": (obs, reward, np.array([True, False]), truncated, info),
            "two_rewards": (obs, np.ones(2), ended, truncated, info),
            "huge_integer": (obs, 10**400, ended, truncated, info),
            "large_reward": (obs, 1e308, ended, truncated, info),
            "large_observation": (obs + 1e300, reward, ended, truncated, info),
            "ragged_observation": ([[1.0], [1.0, [2.0]]], reward, ended, truncated, info),
            "angry_observation": (AngryArray(), reward, ended, truncated, info),
            "mute_observation": (MuteValue(), reward, ended, truncated, info),
            "angry_info": (obs, reward, ended, truncated, AngryInfo()),
            "mute_success": (obs, reward, ended, truncated, {"success": MuteValue()}),
        }
        return odd.get(self._fault, (obs, reward, ended, truncated, info))

    def render(self) -> Any:
        raise SystemExit(5)

    def close(self) -> None:
        raise SystemExit(0)


class WanderingEnv(MatrixEnv):
    """Changes to a folder when it is made, and expects to stay there."""

    def __init__(self, folder: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        os.chdir(folder)
        self._folder = os.getcwd()

    def step(self, action: np.ndarray) -> Any:
        assert os.getcwd() == self._folder
        return super().step(action)


class MortalEnv(gym.Env[np.ndarray, np.ndarray]):
    """Ends the process in its first step, as a crash in a C library does."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(2), {}

    def step(self, action: np.ndarray) -> Any:
        os._exit(1)
