"""Scripted expert of obstacle avoidance with the variation of human teleoperation.

    nsde-policy collect --env avoiding --policy examples.avoiding_expert:AvoidingExpert --out more.zarr

records it, as it has recorded the demonstrations of the package. The mode of an episode is its seed modulo
24, so that consecutive seeds cover all modes evenly.
"""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np

from nsde_policy.envs.avoiding import geometry
from nsde_policy.envs.avoiding.dynamics import follow
from nsde_policy.envs.avoiding.env import MAX_CHANGE
from nsde_policy.errors import EnvError

PASSAGES = (
    ((0.405, 0.45), (0.55, 0.595)),
    ((0.335, 0.382), (0.468, 0.532), (0.618, 0.665)),
    ((0.255, 0.307), (0.393, 0.457), (0.543, 0.607), (0.693, 0.745)),
)
"""Range of x in which each gap of each level is passed, metres."""
LEAST_CLEARANCE = 0.0015
"""Smallest distance to an obstacle along a demonstration, metres."""
PERIODS = (61, 107)
"""Shortest and longest demonstration."""
SPEEDS = (0.009, 0.0125)
"""Range of the usual speed of an episode, metres per control period."""
RESPONSE = 0.45
"""Share of a wished change of speed that the hand makes in one control period; it stops within 0.15 s."""
TREMOR = 0.0001
"""Amplitude of the hand's tremor, metres."""
TRIES = 2000
_CURVE_POINTS = 60
"""Points per section of a curve, before it is sampled by speed."""


class AvoidingExpert:
    """Expert that draws a curve through the gaps of a mode and follows it with varying speed and pauses.

    Args:
        env: The environment, whose start it reads from the first observation.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._rng = np.random.default_rng(0)
        self._mode = 0
        self._actions: list[np.ndarray] | None = None

    def reset(self, seed: int) -> None:
        """Choose mode and noise of an episode by its seed."""
        self._rng, self._mode, self._actions = np.random.default_rng(seed), seed % geometry.N_MODES, None

    def select_action(self, obs: np.ndarray) -> np.ndarray:
        """Return the next change of the command; the first call plans the whole episode."""
        if self._actions is None:
            self._actions = [*plan_demonstration(obs[:2], self._mode, self._rng)]
        return self._actions.pop(0) if self._actions else np.array([0.0, MAX_CHANGE])


def plan_demonstration(start: np.ndarray, mode: int, rng: np.random.Generator) -> np.ndarray:
    """Return the actions (n, 2) of one demonstration.

    Candidates are drawn until one keeps clear of the obstacles and takes a usual time.

    Args:
        start: Position at which the rod rests, (2,).
        mode: Mode from 0 to 23.
        rng: Generator of all variation.
    """
    for _ in range(TRIES):
        curve = _draw_curve(start, mode, rng)
        actions = _travel(start, curve, rng)
        path = _simulate(start, actions)
        crossed = np.flatnonzero(path[:, 1] > geometry.FINISH_Y)
        if not len(crossed) or not PERIODS[0] <= crossed[0] <= PERIODS[1]:
            continue
        path = path[: crossed[0] + 1]
        clearance = min(geometry.measure_clearance(a, b) for a, b in itertools.pairwise(path))
        if clearance >= LEAST_CLEARANCE and _read_mode(path) == mode:
            return actions[: crossed[0]]
    raise EnvError(f"no demonstration of mode {mode} from {start.tolist()} within {TRIES} tries")


def _read_mode(path: np.ndarray) -> int:
    """Return the mode of a path (n, 2), -1 if it does not pass all levels."""
    reader = geometry.ModeReader()
    for x, y in path.tolist():
        reader.add(x, y)
    return reader.mode


def _draw_curve(start: np.ndarray, mode: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a smooth curve from the start through the gaps of a mode to beyond the line, (points, 2)."""
    gaps = mode // 12, mode // 4 % 3, mode % 4
    points = [start]
    for (level, _), gap, ranges in zip(geometry.OBSTACLE_LEVELS, gaps, PASSAGES, strict=True):
        points.append(np.array([rng.uniform(*ranges[gap]), level + rng.normal(0.0, 0.012)]))
    points.append(points[-1] + [rng.normal(0.0, 0.025), 0.125])
    knots = np.array(points)
    chords = np.diff(knots, axis=0)
    lengths = np.linalg.norm(chords, axis=1)
    upright = rng.uniform(0.25, 1.0)  # 1 passes a level straight up, 0 along the line between its neighbours
    tangents = np.empty_like(knots)
    tangents[0], tangents[-1] = chords[0] / lengths[0], chords[-1] / lengths[-1]
    for i in range(1, len(knots) - 1):
        along = (knots[i + 1] - knots[i - 1]) / np.linalg.norm(knots[i + 1] - knots[i - 1])
        blend = upright * np.array([0.0, 1.0]) + (1 - upright) * along
        tangents[i] = blend / np.linalg.norm(blend)
    roundness = rng.uniform(0.7, 1.3, len(knots))
    share = np.linspace(0.0, 1.0, _CURVE_POINTS, endpoint=False)[:, None]
    sections = []
    for i, length in enumerate(lengths):
        a, b = roundness[i] * length * tangents[i], roundness[i + 1] * length * tangents[i + 1]
        sections.append(
            (2 * share**3 - 3 * share**2 + 1) * knots[i]
            + (share**3 - 2 * share**2 + share) * a
            + (3 * share**2 - 2 * share**3) * knots[i + 1]
            + (share**3 - share**2) * b
        )
    return np.concatenate([*sections, knots[-1:]])


def _travel(start: np.ndarray, curve: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the actions that follow a curve: slow start, slower in bends, wavering, with pauses; (n, 2)."""
    steps = np.diff(curve, axis=0)
    arc = np.concatenate([[0.0], np.cumsum(np.linalg.norm(steps, axis=1))])
    heading = np.unwrap(np.arctan2(steps[:, 1], steps[:, 0]))
    bend = np.abs(np.gradient(heading, arc[:-1]))  # curvature, 1 / metre
    usual, caution = rng.uniform(*SPEEDS), rng.uniform(0.0, 0.02)
    phase, waver = rng.uniform(0, 2 * np.pi, 2), rng.uniform(0.05, 0.25)
    pauses = sorted(rng.uniform(0.05, 0.9, rng.poisson(2.2)) * arc[-1])
    actions, command, at = [np.zeros(2)] * int(rng.integers(2, 7)), start, 0.0
    speed = 0.0
    while at < arc[-1]:
        wished = usual / (1 + caution * np.interp(at, arc[:-1], bend))
        wished *= 1 + waver * np.sin(2 * np.pi * at / 0.23 + phase[0]) + 0.08 * rng.standard_normal()
        if pauses and at >= pauses[0]:
            wished = 0.0
            if speed < 0.1 * usual:
                pauses.pop(0)
                actions += [np.zeros(2)] * int(rng.integers(1, 6))
        speed += RESPONSE * (wished - speed)
        at += max(speed, 0.0002)
        point = np.array([np.interp(at, arc, curve[:, 0]), np.interp(at, arc, curve[:, 1])])
        point += TREMOR * np.sin(2 * np.pi * at / 0.04 + phase)
        action = np.clip(point - command, -MAX_CHANGE, MAX_CHANGE)
        command = command + action
        actions.append(action)
    return np.array(actions)


def _simulate(start: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the positions of the rod before each action and after the last one, (n + 1, 2)."""
    x, y = start.tolist()
    path, speed_x, speed_y = [(x, y)], 0.0, 0.0
    for command_x, command_y in (start + np.cumsum(actions, axis=0)).tolist():
        x, speed_x = follow(x, speed_x, command_x)
        y, speed_y = follow(y, speed_y, command_y)
        path.append((x, y))
    return np.array(path)


if __name__ == "__main__":
    print(__doc__)
