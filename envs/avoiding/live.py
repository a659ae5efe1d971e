"""Obstacle avoidance on the live page: the rod's command follows a policy or the pointer."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from .. import AVOIDING_PERIODS
from ..live import LiveTable, TableStep
from . import geometry
from .dynamics import PERIOD_S
from .env import MAX_CHANGE, AvoidingEnv, StartRule


class AvoidingTable(LiveTable):
    """An episode of obstacle avoidance for the live page."""

    page = geometry.PAGE
    unit = ("mm", 1000 / geometry.PIXELS_PER_METRE)
    agent = slice(2, 4)
    limits = (-MAX_CHANGE, MAX_CHANGE)
    longest_s = limit_s = AVOIDING_PERIODS * PERIOD_S
    texts: ClassVar[Mapping[str, str]] = {
        "agent": "rod",
        "goal": "finish; touching an obstacle fails",
        "progress": "of the way",
        "threshold": "the line is crossed",
        "tagline": "Drag the rod. Watch it find a way.",
        "record": "Lead the rod between the obstacles to the other side within nine seconds.",
        "failed": "touched",
    }

    def __init__(self, start: StartRule) -> None:
        self._env = AvoidingEnv(start=start)

    def start(self, seed: int) -> tuple[np.ndarray, Mapping[str, object]]:
        """Reset the environment."""
        return self._env.reset(seed=seed)

    def advance(self, action: np.ndarray, dragged: np.ndarray | None = None) -> TableStep:
        """Run one control period; there is no block to drag."""
        obs, reward, terminated, _, info = self._env.step(action)
        return TableStep([obs], reward, terminated, info)

    def command_point(self, state: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Return the action that moves the command towards a position."""
        return self.clip(point - state[:2])

    def find_targets(self, state: np.ndarray, last_action: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Add the actions, which are changes, to the commanded position, which is part of the state."""
        return np.cumsum(np.vstack([state[:2], actions]), axis=0)

    def describe(self, state: np.ndarray) -> list[float]:
        """Return the rod's position on the page, rounded."""
        return [round(value, 2) for value in self.page.to_page(state[2:]).tolist()]
