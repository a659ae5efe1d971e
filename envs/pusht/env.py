"""Push-T as a Gymnasium environment."""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from nsde_policy.errors import EnvError

from ..inputs import parse_floats, parse_state, require_one_of
from . import geometry
from .dynamics import CONTROL_HZ, STEPS_PER_PERIOD, PushTDynamics

ObsType = Literal["state", "pixels_agent_pos", "pixels_state"]
ResetRule = Literal["benchmark", "gym_pusht"]
Observation = np.ndarray | dict[str, np.ndarray]

FRAME_SIZE = 96
_START_RANGES = ((50, 450), (50, 450), (100, 400), (100, 400))
"""Ranges of agent x, y and block x, y at a start, whole pixels, upper end excluded."""
_PUSH_RANGE = (100.0, 400.0)
"""Limits of the block's origin after a push, pixels: as at a start."""
_HOLD_RANGE = (7.0, 504.0)
"""Limits of every corner of the block while it is held, pixels: between the walls."""
_MAX_PUSH_TURN = 0.5
"""Largest rotation by a push, radians."""
_AGENT_RANGE = (0.0, geometry.SIDE)
_BLOCK_RANGE = (-256.0, 768.0)
"""Limits of the block's origin: it can be squeezed past a wall, but only as far as the agent reaches."""
_STATE_RANGES = (_AGENT_RANGE, _AGENT_RANGE, _BLOCK_RANGE, _BLOCK_RANGE, (0.0, 2 * math.pi))


class PushTEnv(gym.Env[Observation, np.ndarray]):
    """Push a T-shaped block onto its outline.

    ## Action
    Target of the agent, [x, y] in pixels of the 512 table. A PD controller drives the agent there for
    one control period of 0.1 s. Targets are clipped to the table; NaN, infinity or another shape raises
    `EnvError`.

    ## Observation, by `obs_type`
    - `state`: [agent x, agent y, block x, block y, block angle], pixels and radians in [0, 2π]
    - `pixels_agent_pos`: {"pixels": the benchmark's frame, (96, 96, 3) uint8, "agent_pos": [x, y]}
    - `pixels_state`: {"pixels": that frame, "state": the five numbers of `state`}, for recordings

    ## Reward
    Covered share of the goal ÷ 0.95, clipped to [0, 1].

    ## Termination
    Covered share above 0.95. Made through `gymnasium.make`, truncated after 300 control periods.

    ## Info
    `coverage` in [0, 1]; `success` (coverage above 0.95). As in gym-pusht: `is_success`, `pos_agent`,
    `vel_agent` in pixels per second, `block_pose` with the angle not wrapped, and `goal_pose`.

    ## Reset, by `reset_rule`
    - `benchmark`: the starts of the published scores (test seeds 100000 and up); demonstration k of
      the human set starts where seed k does
    - `gym_pusht`: the starts that gym-pusht 0.1.8 draws from the same seed
    Without a seed, the next start is drawn from the environment's own generator. With
    `options={"state": [5 numbers]}` the episode starts exactly there, at rest, with either rule.

    ## Quirks of the benchmark
    Both rules set the block's position before its angle, which moves it, since a body turns about its
    centre of gravity. Every reset runs one physics step before the first
    observation: nothing moves in it, but a block that overlaps the agent gets the impulse that moves it
    next.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": CONTROL_HZ}  # noqa: RUF012

    def __init__(
        self,
        obs_type: ObsType = "state",
        reset_rule: ResetRule = "benchmark",
        render_mode: str | None = None,
    ) -> None:
        require_one_of("obs_type", obs_type, get_args(ObsType))
        require_one_of("reset_rule", reset_rule, get_args(ResetRule))
        self.obs_type = obs_type
        self.reset_rule = reset_rule
        self.render_mode = render_mode
        self.action_space = spaces.Box(*_AGENT_RANGE, (2,), np.float64)
        self.observation_space = _make_observation_space(obs_type)
        self._dynamics: PushTDynamics | None = None
        self._target: tuple[float, float] | None = None
        self._block: geometry.Pose | None = None
        self._coverage = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        """Start an episode; see the class for `seed` and `options`."""
        super().reset(seed=seed)
        low, high = zip(*_STATE_RANGES[:4], (-math.inf, math.inf), strict=True)
        state = parse_state(options, low, high)
        start = self._draw_start(seed) if state is None else state
        self._dynamics = PushTDynamics()  # only now: a rejected start leaves the table as it is
        self._dynamics.place(start, position_first=state is None)
        self._dynamics.settle()
        self._target = None
        return self._observe_table()

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, object]]:
        """Run one control period towards the target `action`."""
        obs, info = self.advance(action, STEPS_PER_PERIOD)
        return obs, self.find_reward(), bool(info["success"]), False, info

    def find_reward(self) -> float:
        """Return the reward of the present state."""
        return min(self._coverage / geometry.SUCCESS_COVERAGE, 1.0)

    def render(self) -> np.ndarray:
        """Return a frame for people, (512, 512, 3) uint8."""
        from . import drawing

        return drawing.frame(self._world.agent, self._world.block_pose, target=self._target)

    def advance(self, action: np.ndarray, physics_steps: int) -> tuple[Observation, dict[str, object]]:
        """Run some physics steps of 0.01 s towards the target, for control loops at other rates."""
        x, y = (min(max(value, 0.0), geometry.SIDE) for value in parse_floats(action, 2, "an action"))
        self._target = x, y
        self._world.advance(x, y, physics_steps)
        return self._observe_table()

    def push(self, distance: float, rng: np.random.Generator) -> None:
        """Disturb the block: move it `distance` pixels in a random direction and turn it a little.

        It stays on the table, at rest; the next observation shows the change.
        """
        x, y, angle = self._world.block_pose
        direction, turn = rng.uniform(0.0, 2 * math.pi), rng.uniform(-_MAX_PUSH_TURN, _MAX_PUSH_TURN)
        x, y = x + distance * math.cos(direction), y + distance * math.sin(direction)
        low, high = _PUSH_RANGE
        self._world.move_block((min(max(x, low), high), min(max(y, low), high), angle + turn))

    def hold_block(self, pose: Sequence[float]) -> None:
        """Put the block at rest at (x, y, angle), or as close as the walls allow.

        The agent's motion is unchanged; the next observation shows the change. A block that is held over the
        agent is pushed out by the physics.
        """
        x, y, angle = parse_floats(pose, 3, "a pose of the block")
        wrapped = x, y, math.remainder(angle, 2 * math.pi)
        self._world.move_block(geometry.move_inside(wrapped, *_HOLD_RANGE))

    @property
    def _world(self) -> PushTDynamics:
        if self._dynamics is None:
            raise EnvError("the environment has no state yet: call reset() first")
        return self._dynamics

    def _draw_start(self, seed: int | None) -> list[float]:
        """Draw agent x, y, block x, y, angle according to the reset rule."""
        if self.reset_rule == "gym_pusht":
            xy = [float(self.np_random.integers(low, high)) for low, high in _START_RANGES]
            return [*xy, self.np_random.uniform(-math.pi, math.pi)]
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        rng = np.random.RandomState(seed)  # the published test seeds refer to this generator, below 2**32
        return [
            *(float(rng.randint(low, high)) for low, high in _START_RANGES),
            rng.randn() * 2 * math.pi - math.pi,
        ]

    def _observe_table(self) -> tuple[Observation, dict[str, object]]:
        """Read the table once for observation and info."""
        agent, (x, y, turned) = self._world.agent, self._world.block_unwrapped
        block = x, y, turned % (2 * math.pi)
        if block != self._block:  # it often rests, and coverage is costly
            self._block, self._coverage = block, geometry.coverage(block)
        values = np.array((*agent, *self._world.agent_velocity, x, y, turned, *geometry.GOAL_POSE))
        success = self._coverage > geometry.SUCCESS_COVERAGE
        info: dict[str, object] = {
            "coverage": self._coverage,
            "success": success,
            "is_success": success,
            "pos_agent": values[:2],
            "vel_agent": values[2:4],
            "block_pose": values[4:7],
            "goal_pose": values[7:],
        }
        return self._observe(agent, block), info

    def _observe(self, agent: geometry.Point, block: geometry.Pose) -> Observation:
        if self.obs_type == "state":
            return np.array(agent + block)
        from . import drawing

        pixels = drawing.benchmark_frame(agent, block)
        if self.obs_type == "pixels_state":
            return {"pixels": pixels, "state": np.array(agent + block)}
        return {"pixels": pixels, "agent_pos": np.array(agent)}


def _make_observation_space(obs_type: ObsType) -> spaces.Space[Any]:
    state = _make_box(_STATE_RANGES)
    if obs_type == "state":
        return state
    pixels = spaces.Box(0, 255, (FRAME_SIZE, FRAME_SIZE, 3), np.uint8)
    if obs_type == "pixels_state":
        return spaces.Dict({"pixels": pixels, "state": state})
    return spaces.Dict({"pixels": pixels, "agent_pos": _make_box(_STATE_RANGES[:2])})


def _make_box(limits: Sequence[tuple[float, float]]) -> spaces.Box:
    low, high = np.array(limits).T
    return spaces.Box(low, high, dtype=np.float64)
