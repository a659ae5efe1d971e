"""Play episodes with a policy: receding-horizon chunks of actions, one seed per episode.

The result of a seed depends on that seed alone: its start, noise, disturbances and plans are computed row by
row, so not on the order, the number of processes or the other seeds. Only on a GPU, where episodes share one
batch, matrix products round differently with the number of rows.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from nsde_policy.config import Sampling
from nsde_policy.core.spec import STATE_KEY
from nsde_policy.errors import ConfigError, EnvError
from nsde_policy.eval.camera import CameraCondition, CameraDisturbances
from nsde_policy.eval.compressed import CompressedPicture
from nsde_policy.eval.disturbances import Condition, Disturbances
from nsde_policy.eval.paths import shorten_path
from nsde_policy.inference.policy import Policy
from nsde_policy.planner.history import History
from nsde_policy.run_directory import RunRecord
from nsde_policy.tasks import Task, find_rate, get_task_of_run, read_episode_mode
from nsde_policy.tasks.adapter import EnvAdapter, check_figure
from nsde_policy.tasks.gym import choose_mujoco_renderer

Frames = Literal["none", "last", "all"]
"""Observations of an episode that pictures are kept of; MuJoCo without a GPU takes 0.1 s for one."""


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are played."""

    task: Task | None = None
    """Task to play; None for the one that the policy was trained for. Worker processes need it if the task is
    registered by the running program instead of an entry point."""
    env_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment, which override those of the task."""
    chunk: int | None = None
    """Actions executed before planning again; None for the policy's own."""
    sampling: Sampling | None = None
    """How actions are sampled; None for the policy's own."""
    condition: Condition = field(default_factory=Condition)
    """Disturbances of the episodes."""
    camera: CameraCondition = field(default_factory=CameraCondition)
    """Disturbances of the cameras, if the policy has some."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Camera frames to keep in the trace: parts of the environment's observation, by the name they get."""

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise ConfigError(f"chunk must be at least 1, got {self.chunk}")


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
    frames: list[CompressedPicture] = field(default_factory=list)
    """The environment's own picture of each observation; empty unless `Player.play` was asked for them."""
    images: dict[str, list[CompressedPicture]] = field(default_factory=dict)
    """Recorded parts of each observation by name; empty unless `RolloutConfig.images` names some."""

    def add_images(self, env: EnvAdapter, images: Mapping[str, str]) -> None:
        """Add camera frames of the environment's last observation, parts of it by name."""
        for name, part in images.items():
            frame = CompressedPicture.compress(env.read_image(part))
            self.images.setdefault(name, []).append(frame)


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
    max_progress: float | None
    """Largest progress at any moment; None if the task defines no progress."""
    steps: int
    plans: int
    planned: int
    """Number of planned actions; the last few may not have been executed."""
    network_calls: int
    planning_s: float
    """Time spent planning, seconds."""
    mode: int | None = None
    """Which way it took, see `Reporting.modes`: -1 if unknown, None if the task has no modes."""
    success_step: int | None = None
    """Number of actions before the first success; None for all, or without success."""
    path: np.ndarray | None = field(default=None, compare=False, repr=False)
    """Where it went, at few moments, see `shorten_path`."""
    trace: Trace = field(default_factory=Trace, compare=False, repr=False)
    """What happened, step by step; `RolloutPool` returns it on demand only."""

    def __post_init__(self) -> None:
        figures = {"score": self.score, "progress": self.max_progress or 0.0, **self.metrics}
        for name, value in figures.items():
            check_figure(f"episode seed {self.seed}: its {name}", value)

    @property
    def steps_to_success(self) -> int | None:
        """Number of actions until the environment first reported success; None without success."""
        if not self.success:
            return None
        return self.steps if self.success_step is None else self.success_step

    def to_dict(self, score_name: str) -> dict[str, Any]:
        """Return plain values for JSON, with the score under its name in the task."""
        costs = ("steps", "plans", "planned", "network_calls", "planning_s")
        outcome = {"seed": self.seed, score_name: self.score, "success": self.success, **self.metrics}
        outcome |= {} if self.mode is None else {"mode": self.mode}
        outcome |= {} if self.success is None else {"steps_to_success": self.steps_to_success}
        return outcome | {name: getattr(self, name) for name in costs}


def is_display_named() -> bool:
    """Return whether this machine may have a display; on Linux, variables name it."""
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return named or sys.platform in ("darwin", "win32")


def make_generator(seed: int) -> torch.Generator:
    """Make the generator of an episode's noise from the episode's seed."""
    return torch.Generator().manual_seed(seed)


class EpisodeHost(Protocol):
    """What an episode needs of the object that plays it."""

    @property
    def policy(self) -> Any:
        """Encodes observations, and has `spec`, `record` and `chunk`."""

    @property
    def config(self) -> RolloutConfig:
        """Settings of the episodes."""

    @property
    def task(self) -> Task:
        """Task that scores the episode."""


class EpisodeRunner:
    """One episode in progress.

    A plan is requested every `chunk` control periods. Until the first plan arrives, the last command is
    repeated; later plans are requested early enough to follow the one before. Actions whose period has passed
    when a plan arrives are dropped, if the plan has actions left; with a latency of 2 periods:

        period      0 1 2 3 4 5 6 7 8 9 …
        requested   x               x
        planned     - - x x x x x x x x
        executed    hold x x x x x x x x …
    """

    def __init__(self, player: EpisodeHost, env: EnvAdapter, seed: int, *, frames: Frames = "none") -> None:
        policy, config = player.policy, player.config
        self.seed, self.generator, self.history = seed, make_generator(seed), policy.spec.new_history()
        self.steps, self.planning_s, self.ended, self._frames = 0, 0.0, False, frames
        self._policy = policy
        self._task, self._env, self._trace, self._push = player.task, env, Trace(), config.condition.push
        std = np.array(policy.record.layout.increment_std[: policy.spec.plain_dim])
        self._disturbances = Disturbances(config.condition, seed, std)
        self._camera = CameraDisturbances(config.camera, seed)
        self._images = config.images
        self._latency, self._chunk = config.condition.latency_steps, config.chunk or policy.chunk
        self._pending: list[tuple[int, np.ndarray]] = []
        self._actions: list[np.ndarray] = []
        self._rewards: list[float] = []
        self._infos: list[Mapping[str, object]] = []
        self._observe(*env.reset(seed))

    @property
    def trace(self) -> Trace:
        """What happened in the episode so far."""
        return self._trace

    def run(self, planned: np.ndarray, *, periods: int | None = None) -> None:
        """Take the requested plan and step until the next plan is due, or for some periods, or to the end."""
        self._trace.histories.append((self.steps, self.history.copy()))
        passed = min(self._latency, len(planned) - min(self._chunk, len(planned)))
        self._pending.append((self.steps + self._latency, planned[passed:]))
        for _ in range(periods or self._chunk):
            self._step()
            if self.ended:
                break

    def _step(self) -> None:
        if self._pending and self._pending[0][0] == self.steps:
            self._actions = list(self._pending.pop(0)[1])
        planned = self._actions.pop(0) if self._actions else self.history.last_action
        if (rng := self._disturbances.push_rng(self.steps)) is not None:
            with self._env.guard("push"):
                self._env.env.unwrapped.push(self._push, rng)  # type: ignore[attr-defined]
        action = self._env.clip(planned)
        obs, reward, self.ended, info = self._env.step(action)
        self.history.add_action(action)
        self.steps += 1
        self._rewards.append(reward)
        self._trace.actions.append(action)
        self._observe(obs, info)

    def _observe(self, obs: np.ndarray, info: Mapping[str, object]) -> None:
        self.history.add_observation(self._encode(self._disturbances.add_noise(obs)))
        self._infos.append(info)
        with self._env.guard("reading the state and the progress"):
            self._trace.obs.append(self._task.drawing.read_state(obs, info))
            self._trace.progress.append(self._task.drawing.progress(info))
        self._trace.add_images(self._env, self._images)
        if self._frames == "all" or (self._frames == "last" and self.ended):
            picture = next(iter(self._env.last_frames.values()), None)
            picture = self._env.render() if picture is None else picture
            self._trace.frames.append(CompressedPicture.compress(picture))

    def _encode(self, obs: np.ndarray) -> np.ndarray | Callable[[], np.ndarray]:
        """Return the observation, or a function that encodes its frames if a plan needs it."""
        frames = self._camera.change(self._env.last_frames)
        return partial(self._policy.encode, {STATE_KEY: obs, **frames}) if frames else obs

    def result(self, *, planned: int, calls: int) -> EpisodeResult:
        """Return the result, given the planned actions and network calls of one plan."""
        with self._env.guard("scoring the episode"):
            outcome = self._task.outcome(self._rewards, self._infos)
            mode = read_episode_mode(self._task, self._infos[-1])
        plans, progress = len(self._trace.histories), self._trace.progress
        return EpisodeResult(
            seed=self.seed,
            success=outcome.success,
            score=outcome.score,
            metrics=outcome.metrics,
            max_progress=max((value for value in progress if value is not None), default=None),
            steps=self.steps,
            plans=plans,
            planned=plans * planned,
            network_calls=plans * calls,
            planning_s=self.planning_s,
            mode=mode,
            success_step=outcome.success_step,
            path=shorten_path(self._trace.obs, self._task),
            trace=self._trace,
        )


class Player:
    """A policy and the environments of its task.

    Args:
        path: Run directory; None for the policy shipped in the package.
        config: How episodes are played.
        device: Where plans are computed.
        batch: Number of environments.
    """

    def __init__(
        self, path: Path | None, config: RolloutConfig, *, device: str = "cpu", batch: int = 1
    ) -> None:
        self.policy = Policy.from_pretrained(path).to(device)
        self.config = config
        self.task = config.task or get_task_of_run(self.policy.record)
        self._envs = [make_adapter(self.task, self.policy.record, config.env_kwargs) for _ in range(batch)]
        self._render_env: EnvAdapter | None = None
        self.rate_hz = find_rate(self.task, self._envs[0].env)
        check_push(self._envs[0], config)
        if config.camera != CameraCondition() and not self.policy.spec.cameras:
            given = [name for name, value in config.camera.to_dict().items() if value]
            flags = ", ".join(f"--camera-{name}" for name in given)
            raise ConfigError(f"this policy has no cameras to disturb: leave out {flags}")

    def play(self, seed: int, *, frames: Frames = "none") -> EpisodeResult:
        """Play one episode to its end.

        Args:
            seed: Seed of the episode.
            frames: The environment's own pictures that are kept in the trace, if the task cannot draw.
        """
        env = self._envs[0]
        has_cameras = bool(self.policy.spec.cameras)  # whose frames are kept as they are
        frames = frames if has_cameras or not self.task.drawing.can_draw else "none"
        if frames != "none" and not has_cameras:
            env = self._render_env = self._render_env or self.make_render_env()
        (result,) = self._play([EpisodeRunner(self, env, seed, frames=frames)])
        return result

    def make_render_env(self) -> EnvAdapter:
        """Make the environment once more, with pictures.

        Raises:
            EnvError: If it does not draw pictures.
        """
        name = self._envs[0].name
        with self._envs[0].guard("its metadata"):
            modes = [str(mode) for mode in self._envs[0].env.metadata.get("render_modes") or ()]
        if "rgb_array" not in modes:
            raise EnvError(
                f"environment {name} cannot be rendered: it needs the render mode rgb_array in its metadata, "
                f"found {', '.join(modes) or 'none'}; leave out --render, or add that mode"
            )
        if not is_display_named():
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # SDL would print that it finds no display
            choose_mujoco_renderer(name)
        kwargs = {**self.config.env_kwargs, "render_mode": "rgb_array"}
        return make_adapter(self.task, self.policy.record, kwargs)

    def play_batch(self, seeds: Sequence[int]) -> list[EpisodeResult]:
        """Play at most `batch` episodes side by side, each to its end; all plans are made in one batch."""
        envs = self._envs[: len(seeds)]
        return self._play([EpisodeRunner(self, env, seed) for env, seed in zip(envs, seeds, strict=True)])

    def _play(self, episodes: Sequence[EpisodeRunner]) -> list[EpisodeResult]:
        policy, config = self.policy, self.config
        steps = count_planned(policy, config)
        while running := [episode for episode in episodes if not episode.ended]:
            started = time.perf_counter()
            plans = policy.plan_batch(
                [episode.history for episode in running],
                generators=[episode.generator for episode in running],
                chunk=steps,
                sampling=config.sampling,
            )
            share = (time.perf_counter() - started) / len(running)
            for episode, plan in zip(running, plans, strict=True):
                episode.planning_s += share
                episode.run(plan.actions)
        calls = policy.model.network_calls(steps, config.sampling)
        return [episode.result(planned=steps, calls=calls) for episode in episodes]


def count_planned(policy: Policy, config: RolloutConfig) -> int:
    """Return how many actions a plan has: those executed, and those that pass before it arrives."""
    wanted = policy.check_chunk(config.chunk or policy.chunk) + config.condition.latency_steps
    return min(wanted, policy.model.config.longest_chunk or wanted)


def check_push(env: EnvAdapter, config: RolloutConfig) -> None:
    """Raise `ConfigError` if pushes are asked for in an environment without them."""
    if config.condition.push:
        with env.guard("its attribute push"):
            can_push = hasattr(env.env.unwrapped, "push")
        if not can_push:
            raise ConfigError(f"nothing can be pushed in {env.name}: leave out --push")


def make_adapter(task: Task, record: RunRecord, env_kwargs: Mapping[str, object]) -> EnvAdapter:
    """Make the environment of a task and check that it fits a run.

    Raises:
        EnvError: If it cannot be made, or its observations or actions have other sizes.
    """
    layout, obs_keys = record.layout, record.config.demos.obs_keys
    env = EnvAdapter.open(
        task, env_kwargs, obs_keys=obs_keys, obs_dim=layout.plain_dim, cameras=record.cameras
    )
    env.check_sizes(layout.plain_dim, layout.act_dim)
    return env
