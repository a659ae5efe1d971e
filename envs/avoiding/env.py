"""Obstacle avoidance as a Gymnasium environment."""

from typing import Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from nsde_policy.errors import EnvError

from ..inputs import parse_floats, parse_state, require_one_of
from . import geometry
from .dynamics import CONTROL_RATE_HZ, follow

StartRule = Literal["fixed", "varied"]

MAX_CHANGE = 0.0125
"""Largest change of the command per axis and control period, metres."""


class AvoidingEnv(gym.Env[np.ndarray, np.ndarray]):
    """Move a rod between six round obstacles to the other side of the table, on one of 24 ways.

    The geometry is that of the obstacle avoidance task of D3IL (Jia et al., ICLR 2024).

    ## Action
    Change of the commanded position, [dx, dy] in metres, clipped to ±12.5 mm; the command is clipped to the
    table. NaN, infinity or another shape raises `EnvError`.

    ## Observation
    [commanded x, commanded y, actual x, actual y] in metres. The rod lags its command: see `dynamics`.

    ## Reward
    1 in the period in which the rod crosses the line y = 0.35, else 0.

    ## Termination
    The rod touches an obstacle (failure) or crosses the line (success). Made through `gymnasium.make`,
    truncated after 250 control periods of 35 ms.

    ## Info
    `success`; `touched`; `mode` from 0 to 23, -1 as long as it is unknown (see `geometry.ModeReader`);
    `progress` from the start (0) to the line (1), the furthest so far.

    ## Reset, by `start`
    - `fixed`: at (0.525, -0.28), whatever the seed
    - `varied`: x from 0.4 to 0.6 and y from -0.3 to -0.24, drawn from the seed
    With `options={"state": [4 numbers]}` the episode starts at that observation, at rest.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": CONTROL_RATE_HZ}  # noqa: RUF012

    def __init__(self, start: StartRule = "fixed", render_mode: str | None = None) -> None:
        require_one_of("start", start, get_args(StartRule))
        self.start = start
        self.render_mode = render_mode
        self.action_space = spaces.Box(-MAX_CHANGE, MAX_CHANGE, (2,), np.float64)
        self.observation_space = spaces.Box(
            np.array(geometry.TABLE_LOW * 2), np.array(geometry.TABLE_HIGH * 2), dtype=np.float64
        )
        self._reader: geometry.ModeReader | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        """Start an episode; see the class for `seed` and `options`."""
        super().reset(seed=seed)
        self._command_x, self._command_y, x, y = self._choose_start(options)
        self._x, self._y, self._start_y = x, y, y
        self._speed_x = self._speed_y = 0.0
        self._touched, self._furthest = False, y
        self._reader = geometry.ModeReader()
        self._reader.add(x, y)
        return self._observe()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Change the command by `action` and run one control period."""
        if self._reader is None:
            raise EnvError("the environment has no state yet: call reset() first")
        dx, dy = (min(max(d, -MAX_CHANGE), MAX_CHANGE) for d in parse_floats(action, 2, "an action"))
        (low_x, low_y), (high_x, high_y) = geometry.TABLE_LOW, geometry.TABLE_HIGH
        self._command_x = min(max(self._command_x + dx, low_x), high_x)
        self._command_y = min(max(self._command_y + dy, low_y), high_y)
        before = self._x, self._y
        self._x, self._speed_x = follow(self._x, self._speed_x, self._command_x)
        self._y, self._speed_y = follow(self._y, self._speed_y, self._command_y)
        self._furthest = max(self._furthest, self._y)
        self._reader.add(self._x, self._y)
        self._touched = geometry.measure_clearance(before, (self._x, self._y)) <= 0
        obs, info = self._observe()
        success = bool(info["success"])
        return obs, float(success), success or self._touched, False, info

    def render(self) -> np.ndarray:
        """Return a frame for people, (512, 512, 3) uint8."""
        from . import drawing

        return drawing.draw_rod((self._command_x, self._command_y, self._x, self._y), size=512)

    def _choose_start(self, options: dict[str, object] | None) -> list[float]:
        """Return the first observation of an episode: given by the options, fixed, or drawn."""
        state = parse_state(options, geometry.TABLE_LOW * 2, geometry.TABLE_HIGH * 2)
        if state is not None:
            return state
        if self.start == "fixed":
            return [*geometry.FIXED_START * 2]
        (low_x, high_x), (low_y, high_y) = geometry.VARIED_STARTS
        return [
            float(self.np_random.uniform(low_x, high_x)),
            float(self.np_random.uniform(low_y, high_y)),
        ] * 2

    def _observe(self) -> tuple[np.ndarray, dict[str, object]]:
        assert self._reader is not None
        success = self._y > geometry.FINISH_Y and not self._touched
        way = geometry.FINISH_Y - self._start_y
        info: dict[str, object] = {
            "success": success,
            "touched": self._touched,
            "mode": self._reader.mode,
            "progress": min((self._furthest - self._start_y) / way, 1.0) if way > 0 else 1.0,
        }
        return np.array((self._command_x, self._command_y, self._x, self._y)), info
