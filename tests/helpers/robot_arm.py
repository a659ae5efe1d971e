"""A made-up position-controlled arm: seven joints and a gripper, in any unit and at any rate."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.data import Demonstrations, DemoWriter

JOINTS = 7
PEAK_SPEED = 0.6
"""Largest speed of a joint, radians per second."""


def make_arm_demos(
    *,
    episodes: int = 12,
    seconds: float = 4.0,
    rate_hz: float = 20.0,
    lag: float = 0.5,
    noise: float = 0.0,
    unit: float = 1.0,
) -> Demonstrations:
    """Make smooth joint paths from varied starts; an action is the commanded position and the gripper.

    Observations are seven joints, which follow their commands with a lag, and the gripper's width in metres.

    Args:
        episodes: Number of demonstrations.
        seconds: Duration of each.
        rate_hz: Frames per second.
        lag: Share of the distance to the command that is left after one period at 20 Hz.
        noise: Standard deviation of the joint sensors, radians.
        unit: Factor on joints and their commands: 180 / π for degrees.
    """
    rng, sensors, frames = np.random.default_rng(5), np.random.default_rng(6), round(seconds * rate_hz)
    time = np.arange(frames) / rate_hz
    share = lag ** (20.0 / rate_hz)
    obs, act = [], []
    for episode in range(episodes):
        start, phase = rng.uniform(-1.5, 1.5, JOINTS), rng.uniform(0.6, 1.0, JOINTS)
        size = 2 * PEAK_SPEED * seconds / (math.pi * phase)
        command = start + size * rng.choice([-0.5, 0.5], JOINTS) * (
            1 - np.cos(math.pi * phase * np.minimum(time[:, None] / seconds, 1))
        )
        joints = np.empty_like(command)
        joints[0] = start
        for t in range(1, frames):
            joints[t] = command[t - 1] + share * (joints[t - 1] - command[t - 1])
        closed = np.where(time < seconds / 2, episode % 2, 1 - episode % 2)[:, None]
        seen = unit * (joints + sensors.normal(0, noise, joints.shape))
        obs.append(np.concatenate([seen, 0.08 * (1 - closed)], axis=1))
        act.append(np.concatenate([unit * command, closed], axis=1))
    ends = frames * np.arange(1, episodes + 1)
    return Demonstrations(
        np.concatenate(obs).astype(np.float32), np.concatenate(act).astype(np.float32), ends, rate_hz=rate_hz
    )


def write_arm_store(path: Path, demos: Demonstrations, **options: Any) -> Path:
    """Write demonstrations as a store."""
    with DemoWriter(path, rate_hz=demos.rate_hz, **options) as writer:
        for episode in demos:
            writer.append(episode)
    return path
