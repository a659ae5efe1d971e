"""One episode: what happened step by step, its outcome and its costs.

Pictures are compressed; uncompressed ones of 1000 steps would take 700 MB.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nsde_policy.interface.planner import History
from nsde_policy.tasks import Task, read_episode_mode
from nsde_policy.tasks.adapter import EnvAdapter, check_figure

from ..episodes import Episodes


class CompressedFrames:
    """Pictures of one shape as an array (frames, height, width, 3) uint8 that is decompressed in slices."""

    dtype = np.dtype(np.uint8)

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = (0,)
        self._content: list[bytes] = []

    def append(self, picture: npt.NDArray[np.uint8]) -> None:
        """Compress a picture quickly and add it."""
        self._content.append(zlib.compress(picture.tobytes(), 1))
        self.shape = (len(self), *picture.shape)

    def __len__(self) -> int:
        return len(self._content)

    def __getitem__(self, rows: slice) -> npt.NDArray[np.uint8]:
        """Decompress some consecutive pictures, (rows, height, width, 3)."""
        values = b"".join(map(zlib.decompress, self._content[rows]))
        return np.frombuffer(values, np.uint8).reshape(-1, *self.shape[1:])


@dataclass(frozen=True)
class Trace:
    """Observations, actions and plans of one episode, for pictures and recordings."""

    obs: list[np.ndarray] = field(default_factory=list)
    """State before each action, and the last one: the observation, or what `Drawing.read_state` returns."""
    actions: list[np.ndarray] = field(default_factory=list)
    progress: list[float | None] = field(default_factory=list)
    """Progress after the reset and after each action; None if the task defines none."""
    histories: list[tuple[int, History]] = field(default_factory=list)
    """Control period of each plan, and the history it was made from."""
    frames: CompressedFrames = field(default_factory=CompressedFrames)
    """The environment's own picture of each observation, if `EnvRunner.run_one` was asked for them."""
    images: dict[str, CompressedFrames] = field(default_factory=dict)
    """Recorded parts of each observation but the last, by name, see `RolloutConfig.images`."""


@dataclass(frozen=True)
class EpisodeResult:
    """Outcome and costs of one episode."""

    seed: int
    success: bool | None
    """None if the environment does not say."""
    score: float
    """See `Task.outcome`; `Task.score_name` names it."""
    metrics: Mapping[str, float]
    """Further figures of the outcome."""
    steps: int
    plans: int
    planned: int
    """Number of planned actions; the last few may not have been executed."""
    network_calls: int
    planning_s: float
    outside: int = 0
    """Number of steps with an observation far outside the demonstrated range."""
    mode: int | None = None
    """Which way it took, see `Reporting.modes`: -1 if unknown, None if the task has no modes."""
    success_step: int | None = None
    """Number of actions before the first success; None for all, or without success."""
    trace: Trace = field(default_factory=Trace, compare=False, repr=False)
    """What happened, step by step; `RolloutPool` returns it on demand only."""

    def __post_init__(self) -> None:
        for name, value in {"score": self.score, **self.metrics}.items():
            check_figure(f"episode seed {self.seed}: its {name}", value)

    @property
    def steps_to_success(self) -> int | None:
        """Number of actions until the environment first reported success; None without success."""
        if not self.success:
            return None
        return self.steps if self.success_step is None else self.success_step

    def to_dict(self, score_name: str) -> dict[str, object]:
        """Return plain values for JSON, with the score under its name in the task."""
        costs = ("steps", "outside", "plans", "planned", "network_calls", "planning_s")
        outcome: dict[str, object] = {"seed": self.seed, score_name: self.score, "success": self.success}
        outcome |= self.metrics
        if self.mode is not None:
            outcome["mode"] = self.mode
        if self.success is not None:
            outcome["steps_to_success"] = self.steps_to_success
        return outcome | {name: getattr(self, name) for name in costs}


def tabulate_results(
    results: Iterable[EpisodeResult], task: Task | None = None, *, decimals: int | None = None
) -> Episodes:
    """Make columns from episodes in any order; a task adds its modes.

    Scores are rounded to so many decimal places; None leaves them as they are. Success is known if any
    episode says something of it: some environments report it only when it happens.
    """
    ordered = sorted(results, key=lambda result: result.seed)
    common = [name for name in ordered[0].metrics if all(name in r.metrics for r in ordered)]
    reports_success = any(r.success is not None for r in ordered)
    modes = 0 if task is None else task.reporting.modes
    needed = tuple(r.steps_to_success for r in ordered)
    goes_on = any(k not in (None, r.steps) for k, r in zip(needed, ordered, strict=True))

    def shorten(values: Iterable[float]) -> tuple[float, ...]:
        return tuple(float(value) if decimals is None else round(float(value), decimals) for value in values)

    return Episodes(
        seed=tuple(r.seed for r in ordered),
        score=shorten(r.score for r in ordered),
        success=tuple(bool(r.success) for r in ordered) if reports_success else None,
        metrics={name: shorten(r.metrics[name] for r in ordered) for name in common},
        steps=tuple(int(r.steps) for r in ordered),
        modes=modes,
        mode=tuple(-1 if r.mode is None else r.mode for r in ordered) if modes else None,
        success_step=needed if goes_on else None,
    )


class EpisodeLog:
    """What has happened in one episode, with camera frames as in `RolloutConfig.images`, and its result."""

    def __init__(self, task: Task, env: EnvAdapter, images: Mapping[str, str]) -> None:
        self.trace = Trace()
        self.ended = False
        self.outside = 0
        """Number of steps with an observation far outside the demonstrated range."""
        self._costs = {"plans": 0, "planned": 0, "network_calls": 0}
        self._planning_s = 0.0
        self._task = task
        self._env = env
        self._images = images
        self._rewards: list[float] = []
        self._infos: list[Mapping[str, object]] = []

    @property
    def steps(self) -> int:
        """Number of actions so far."""
        return len(self._rewards)

    def reset(self, seed: int) -> np.ndarray:
        """Reset the environment and return the first observation."""
        self._seed = seed
        obs, info = self._env.reset(seed)
        self._observe(obs, info)
        return obs

    def step(self, action: np.ndarray, *, draw: bool = True) -> np.ndarray:
        """Execute an action and return the next observation, see `EnvAdapter.step`."""
        obs, reward, self.ended, info = self._env.step(action, draw=draw)
        self._rewards.append(reward)
        self.trace.actions.append(action)
        self._observe(obs, info)
        return obs

    def _observe(self, obs: np.ndarray, info: Mapping[str, object]) -> None:
        self._infos.append(info)
        with self._env.guard("reading the state and the progress"):
            self.trace.obs.append(self._task.drawing.read_state(obs, info))
            self.trace.progress.append(self._task.drawing.progress(info))
        for name, part in self._images.items():
            if not self.ended:
                self.trace.images.setdefault(name, CompressedFrames()).append(self._env.read_image(part))

    def add_plan(self, seconds: float, **costs: int) -> None:
        """Count a plan: its seconds, `planned` actions and `network_calls`."""
        self._planning_s += seconds
        for name, value in {"plans": 1, **costs}.items():
            self._costs[name] += value

    def score(self, metrics: Mapping[str, float] | None = None) -> EpisodeResult:
        """Return the result of the episode, with further figures if any are given."""
        with self._env.guard("scoring the episode"):
            outcome = self._task.outcome(self._rewards, self._infos)
            mode = read_episode_mode(self._task, self._infos[-1])
        return EpisodeResult(
            seed=self._seed,
            success=outcome.success,
            score=outcome.score,
            metrics={**outcome.metrics, **(metrics or {})},
            steps=self.steps,
            outside=self.outside,
            **self._costs,
            planning_s=self._planning_s,
            mode=mode,
            success_step=outcome.success_step,
            trace=self.trace,
        )
