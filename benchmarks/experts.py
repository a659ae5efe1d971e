"""Scripted demonstrators of the experiment `auto`."""

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
