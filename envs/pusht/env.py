"""Push-T as a Gymnasium environment."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ, PushTDynamics
from nsde_policy.errors import EnvInputError

ObsType = Literal["state", "keypoints", "pixels", "pixels_agent"]
ResetRule = Literal["benchmark", "gym_pusht"]
RenderMode = Literal["human", "rgb_array"]
Observation = np.ndarray | dict[str, np.ndarray]

FRAME_SIZE = 96
_START_RANGES = ((50, 450), (50, 450), (100, 400), (100, 400))
"""Whole pixels that agent x, y and block x, y are drawn from, upper end excluded."""
_ON_THE_TABLE = (100.0, 400.0)
"""Where the block's origin is kept when it is pushed, pixels: where starts are drawn from."""
_BETWEEN_WALLS = (7.0, 504.0)
"""Where every corner of the block is kept when a hand holds it, pixels."""
_TRIES = 3
_PUSH_TURN = 0.5
"""Most that a push turns the block, radians."""
_BLOCK_LOW, _BLOCK_HIGH = -256.0, 768.0
"""The block can be squeezed past a wall, though never farther than the agent reaches."""


class PushTEnv(gym.Env[Observation, np.ndarray]):
    """Push a T-shaped block onto its outline.

    ## Action
    Where the agent shall go, [x, y] in pixels of the 512 table. A PD law drives it there for one
    control period of 0.1 s. Targets off the table are clipped to it; NaN, infinity or another shape
    is refused with `EnvInputError`.

    ## Observation, by `obs_type`
    - `state`: [agent x, agent y, block x, block y, block angle], pixels and radians in [0, 2π]
    - `keypoints`: nine points on the block, in the order of the demonstrations, then the agent, (20,)
    - `pixels`: the benchmark's frame, (96, 96, 3) uint8
    - `pixels_agent`: {"pixels": that frame, "agent_pos": [x, y]}

    ## Reward
    Covered share of the goal ÷ 0.95, clipped to [0, 1].

    ## Termination
    Covered share above 0.95. Made through `gymnasium.make`, truncated after 300 control periods.

    ## Info
    `coverage` in [0, 1]; `success` (coverage above 0.95); `contacts`, contact points of agent and
    block per physics step of the last period, rounded up.

    ## Reset, by `reset_rule`
    - `benchmark`: the starts of the published scores (test seeds 100000 and up); demonstration k of
      the human set starts where seed k does
    - `gym_pusht`: the starts that gym-pusht 0.1.8 draws from the same seed
    Without a seed, the next start is drawn from the environment's own generator. With
    `options={"state": [5 numbers]}` the episode starts exactly there, at rest, whatever the rule.

    ## Kept quirks
    Both rules set the block's position before its angle, which moves it, since a body turns about
    its centre of gravity. Every reset runs one physics step before the first observation: nothing
    moves in it, but a block that the agent stands in has been given the push it moves with next.
    """

    metadata = {"render_modes": list(get_args(RenderMode)), "render_fps": CONTROL_HZ}  # noqa: RUF012

    def __init__(
        self,
        obs_type: ObsType = "state",
        reset_rule: ResetRule = "benchmark",
        render_mode: RenderMode | None = None,
        render_size: int = 512,
    ) -> None:
        _one_of("obs_type", obs_type, get_args(ObsType))
        _one_of("reset_rule", reset_rule, get_args(ResetRule))
        _one_of("render_mode", render_mode, (None, *get_args(RenderMode)))
        if not isinstance(render_size, int) or not 16 <= render_size <= 8192:
            raise EnvInputError(f"render_size must be a whole number from 16 to 8192, got {render_size!r}")
        self.obs_type = obs_type
        self.reset_rule = reset_rule
        self.render_mode = render_mode
        self.render_size = render_size
        self.action_space = spaces.Box(0.0, geometry.SIDE, (2,), np.float64)
        self.observation_space = _observation_space(obs_type)
        self._observe = _OBSERVE[obs_type]
        self._dynamics: PushTDynamics | None = None
        self._target: tuple[float, float] | None = None
        self._block: Block | None = None
        self._coverage = 0.0
        self._window: Any = None

    # --- Gymnasium's verbs ---

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for `seed` and `options`."""
        seed = _checked_seed(seed)
        super().reset(seed=seed)
        state = _given_state(options)
        start = self._draw_start(seed) if state is None else state
        self._dynamics = PushTDynamics()  # only now: a start that is refused leaves the table as it is
        self._dynamics.place(start, position_first=state is None)
        self._dynamics.settle()
        self._target = None
        return self._look()

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Run one control period towards the target `action`."""
        self._target = x, y = _checked_target(action)
        self._world.advance(x, y)
        obs, info = self._look()
        reward = min(info["coverage"] / geometry.SUCCESS_COVERAGE, 1.0)
        return obs, reward, info["success"], False, info

    def render(self) -> np.ndarray | None:
        """Return the frame for people (`rgb_array`), or show it in a window (`human`)."""
        if self.render_mode is None:
            raise EnvInputError(
                "nothing to render: make the environment with render_mode='rgb_array' or 'human'"
            )
        from nsde_policy.envs.pusht import drawing

        picture = drawing.frame(
            self._world.agent, self._world.block, size=self.render_size, target=self._target
        )
        if self.render_mode == "rgb_array":
            return picture
        if self._window is None:
            self._window = drawing.Window((self.render_size, self.render_size), CONTROL_HZ)
        self._window.show(picture)
        return None

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()
            self._window = None

    # --- Beyond Gymnasium ---

    def advance(self, action: np.ndarray, physics_steps: int) -> tuple[Observation, dict[str, Any]]:
        """Run some steps of the physics, of 0.01 s each, towards the target: for robots at other rates."""
        self._target = x, y = _checked_target(action)
        self._world.advance(x, y, physics_steps)
        return self._look()

    def push(self, distance: float, rng: np.random.Generator) -> None:
        """Move the block as a hand would: `distance` pixels in a random direction, and turn it a little.

        It stays on the table and comes to rest; the next observation tells.
        """
        x, y, angle = self._world.block
        direction, turn = rng.uniform(0.0, 2 * math.pi), rng.uniform(-_PUSH_TURN, _PUSH_TURN)
        x, y = x + distance * math.cos(direction), y + distance * math.sin(direction)
        low, high = _ON_THE_TABLE
        self._world.move_block((min(max(x, low), high), min(max(y, low), high), angle + turn))

    def hold_block(self, pose: Sequence[float]) -> None:
        """Put the block at (x, y, angle), as far as a hand can: on the table, beside the agent, at rest.

        The agent goes on as it moves; the next observation tells.
        """
        x, y, angle = _numbers(pose, 3, "a pose of the block")
        low, high = _BETWEEN_WALLS
        wanted = geometry.kept_inside((x, y, math.remainder(angle, 2 * math.pi)), low, high)
        for _ in range(_TRIES):  # in a corner, table and agent may both want it elsewhere
            wanted = geometry.kept_inside(geometry.kept_clear(wanted, self._world.agent), low, high)
        self._world.move_block(wanted)

    # --- Inside ---

    @property
    def _world(self) -> PushTDynamics:
        if self._dynamics is None:
            raise EnvInputError("the environment has no state yet: call reset() first")
        return self._dynamics

    def _draw_start(self, seed: int | None) -> list[float]:
        """Draw agent x, y, block x, y, angle as the reset rule has it."""
        if self.reset_rule == "benchmark":
            if seed is None:
                seed = int(self.np_random.integers(2**31))
            if seed >= 2**32:
                raise EnvInputError(f"the benchmark's reset rule takes seeds below 2**32, got {seed}")
            rng = np.random.RandomState(seed)  # what the published test seeds mean
            xy = [rng.randint(low, high) for low, high in _START_RANGES]
            return [*map(float, xy), float(rng.randn() * 2 * math.pi - math.pi)]
        xy = [int(self.np_random.integers(low, high)) for low, high in _START_RANGES]
        return [*map(float, xy), float(self.np_random.uniform(-math.pi, math.pi))]

    def _look(self) -> tuple[Observation, dict[str, Any]]:
        """Read the table once, for the observation, the score and the window."""
        agent, block = self._world.agent, self._world.block
        if block != self._block:  # it often rests for a while
            self._block, self._coverage = block, geometry.coverage(block)
        if self.render_mode == "human":
            self.render()
        info = {
            "coverage": self._coverage,
            "success": self._coverage > geometry.SUCCESS_COVERAGE,
            "contacts": self._world.contacts,
        }
        return self._observe(agent, block), info


Agent = tuple[float, float]
Block = tuple[float, float, float]


def _observe_state(agent: Agent, block: Block) -> np.ndarray:
    return np.array(agent + block)


def _observe_keypoints(agent: Agent, block: Block) -> np.ndarray:
    return np.array([*geometry.to_world(geometry.KEYPOINTS, block), agent]).ravel()


def _observe_pixels(agent: Agent, block: Block) -> np.ndarray:
    from nsde_policy.envs.pusht import drawing

    return drawing.benchmark_frame(agent, block, FRAME_SIZE)


def _observe_pixels_agent(agent: Agent, block: Block) -> dict[str, np.ndarray]:
    return {"pixels": _observe_pixels(agent, block), "agent_pos": np.array(agent)}


_OBSERVE: dict[ObsType, Callable[[Agent, Block], Observation]] = {
    "state": _observe_state,
    "keypoints": _observe_keypoints,
    "pixels": _observe_pixels,
    "pixels_agent": _observe_pixels_agent,
}


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise EnvInputError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


def _observation_space(obs_type: ObsType) -> spaces.Space[Any]:
    side = geometry.SIDE
    agent = spaces.Box(0.0, side, (2,), np.float64)
    pixels = spaces.Box(0, 255, (FRAME_SIZE, FRAME_SIZE, 3), np.uint8)
    match obs_type:
        case "state":
            low = np.array([0.0, 0.0, _BLOCK_LOW, _BLOCK_LOW, 0.0])
            high = np.array([side, side, _BLOCK_HIGH, _BLOCK_HIGH, 2 * math.pi])
            return spaces.Box(low, high, dtype=np.float64)
        case "keypoints":
            n = 2 * len(geometry.KEYPOINTS)
            low = np.array([_BLOCK_LOW] * n + [0.0] * 2)
            high = np.array([_BLOCK_HIGH] * n + [side] * 2)
            return spaces.Box(low, high, dtype=np.float64)
        case "pixels":
            return pixels
        case "pixels_agent":
            return spaces.Dict({"pixels": pixels, "agent_pos": agent})


def _numbers(values: Any, n: int, what: str) -> list[float]:
    """`values` as n finite floats, or a clear refusal."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError
        array = array.astype(np.float64, copy=False)
    except (TypeError, ValueError, RuntimeError):  # the last from a tensor that still has its gradient
        raise EnvInputError(
            f"{what} must be {n} numbers, got {type(values).__name__} {values!r:.60}"
        ) from None
    if array.shape != (n,):
        raise EnvInputError(f"{what} must have shape ({n},), got {array.shape}")
    numbers: list[float] = array.tolist()
    if not all(map(math.isfinite, numbers)):
        raise EnvInputError(f"{what} must be finite, got {numbers}")
    return numbers


def _checked_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise EnvInputError(f"a seed must be a whole number from 0 on, got {seed!r:.60}")
    return int(seed)


def _checked_target(action: Any) -> tuple[float, float]:
    x, y = _numbers(action, 2, "an action")
    return min(max(x, 0.0), geometry.SIDE), min(max(y, 0.0), geometry.SIDE)


def _given_state(options: dict[str, Any] | None) -> list[float] | None:
    if not options:
        return None
    if not isinstance(options, dict):
        raise EnvInputError(f"options must be a dict such as {{'state': …}}, got {options!r:.60}")
    unknown = [key for key in options if key != "state"]
    if unknown:
        raise EnvInputError(f"unknown reset option {unknown[0]!r}; the one there is: 'state'")
    if options["state"] is None:
        return None
    state = _numbers(options["state"], 5, "options['state']")
    for name, value in zip(("agent x", "agent y"), state[:2], strict=True):
        _within(name, value, 0.0, geometry.SIDE)
    for name, value in zip(("block x", "block y"), state[2:4], strict=True):
        _within(name, value, _BLOCK_LOW, _BLOCK_HIGH)
    return state


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise EnvInputError(f"options['state']: {name} must lie in [{low:g}, {high:g}], got {value:g}")
