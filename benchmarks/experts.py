"""Scripted demonstrators of the experiments `auto` and `metaworld_camera`."""

import importlib
from typing import Any

import gymnasium as gym
import numpy as np


def push_car(obs: np.ndarray) -> np.ndarray:
    """Push in the direction of motion."""
    return np.array([1.0 if obs[1] >= 0 else -1.0], np.float32)


def swing_up(obs: np.ndarray) -> np.ndarray:
    """Add energy until the pendulum is near the top, then balance it."""
    cosine, sine, speed = obs
    angle = np.arctan2(sine, cosine)
    energy = 0.5 * speed**2 + 10 * (cosine - 1)
    if abs(angle) < 0.5:
        return np.clip(np.array([-10 * angle - 2 * speed], np.float32), -2, 2)
    return np.array([-2.0 if energy * speed > 0 else 2.0], np.float32)


class MetaWorldScript:
    """Meta-World's own script for the task of an environment."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        environments = importlib.import_module("metaworld").ALL_V3_ENVIRONMENTS
        scripts = importlib.import_module("metaworld.policies").ENV_POLICY_MAP
        name = next(name for name, each in environments.items() if type(env.unwrapped) is each)
        self.get_action = scripts[name]().get_action
