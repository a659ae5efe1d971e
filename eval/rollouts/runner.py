"""Run a policy in environments: receding-horizon chunks of actions, one seed per episode.

The result of a seed depends on that seed alone: its start, noise, disturbances and plans are computed row by
row, so not on the order, the number of processes or the other seeds. Only on a GPU, where episodes share one
batch, matrix products round differently with the number of rows.
"""

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from nsde_policy.bounds import Count, Natural
from nsde_policy.config import BaseConfig, Sampling
from nsde_policy.core.spec import STATE_KEY
from nsde_policy.errors import ConfigError, EnvError
from nsde_policy.files import decode_json
from nsde_policy.interface.observation import ObservationMonitor
from nsde_policy.interface.planner import hold_action, round_binary
from nsde_policy.interface.roughness import compare_roughness, measure_roughness
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunRecord
from nsde_policy.selection.rule import Choice
from nsde_policy.tasks import Task, find_rate, get_task_of_run, with_env_kwargs
from nsde_policy.tasks.adapter import EnvAdapter
from nsde_policy.tasks.environments import choose_mujoco_renderer, has_display

from ..episodes import ROUGHNESS
from .disturbances import CameraCondition, CameraDisturbances, Condition, Disturbances
from .episode import EpisodeLog, EpisodeResult
from .plan_queue import PlanQueue, count_planned


@dataclass(frozen=True)
class RolloutConfig(BaseConfig):
    """Seeds, environment, sampling and disturbances of rollouts."""

    env: Task | str | None = None
    """Task or environment, see `get_task`; None for the one that the policy was trained for. Other processes
    need the task itself if the running program registers it."""
    env_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment, which override those of the task and, if `env` is None, of the
    run."""
    episodes: Count = 50
    """Number of consecutive seeds."""
    seed_start: Natural = 100_000
    chunk: Count | None = None
    """Actions executed before replanning; None for the policy's own."""
    sampling: tuple[str, ...] = ()
    """Changes to the sampling settings, such as "alpha=0.5" or "steps=10"."""
    condition: Condition = field(default_factory=Condition)
    camera: CameraCondition = field(default_factory=CameraCondition)
    """Disturbances of the cameras, if the policy has some."""
    select: Choice = "auto"
    """Rule of plan selection; auto for the one that training chose."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Camera frames to keep in the trace: parts of the environment's observation, by the name they get."""

    @property
    def seeds(self) -> range:
        """Seeds of the episodes."""
        return range(self.seed_start, self.seed_start + self.episodes)

    def find_task(self, record: RunRecord) -> Task:
        """Return the task that a run is rolled out in, with all keyword arguments of its environment."""
        task = self.env if isinstance(self.env, Task) else get_task_of_run(record, self.env)
        return with_env_kwargs(task, self.env_kwargs)


class FrameObservation:
    """An observation with frames, which is encoded when a plan needs it."""

    def __init__(self, policy: Policy, parts: Mapping[str, np.ndarray]) -> None:
        self._policy, self.parts = policy, parts
        self.encoded: np.ndarray | None = None

    def __call__(self) -> np.ndarray:
        """Return the observation as the vector that the policy was trained on."""
        if self.encoded is None:
            self.encoded = self._policy.encode(self.parts)
        return self.encoded


class RunningEpisode:
    """One episode in progress; a plan is requested every `chunk` control periods."""

    def __init__(self, runner: "EnvRunner", env: EnvAdapter, seed: int, *, frames: bool = False) -> None:
        policy, config = runner.policy, runner.config
        self.generator = torch.Generator().manual_seed(seed)
        self.history = policy.spec.new_history()
        self.frame_observations: deque[FrameObservation] = deque(maxlen=policy.spec.history)
        """The last observations with frames."""
        self._policy = policy
        self._env = env
        self._frames = frames
        self.log = EpisodeLog(runner.task, env, config.images)
        self._monitor = ObservationMonitor(policy.spec)
        self._is_jump = False
        self._push = config.condition.push
        std = np.array(policy.record.spec.increment_std[: policy.spec.plain_dim])
        self._disturbances = Disturbances(config.condition, seed, std)
        self._camera = CameraDisturbances(config.camera, seed)
        self._always_draw = frames or bool(config.images) or config.camera != CameraCondition()
        self._latency = config.condition.latency_steps
        self._chunk = config.chunk or policy.chunk
        self._queue = PlanQueue()
        self._observe(self.log.reset(seed))

    def run(self, planned: np.ndarray) -> None:
        """Take the requested plan and step until the next plan is due, or to the end."""
        now = self.log.steps
        self.log.trace.histories.append((now, self.history.copy()))
        self._queue.add(planned, now, latency=self._latency, chunk=self._chunk)
        for left in reversed(range(self._chunk)):
            command = self._queue.pop(self.log.steps, self.history.last_action)
            self._step(command, draw=self._always_draw or left < self._policy.spec.history)
            if self.log.ended or self._is_jump:
                break
        while self._is_jump and not self.log.ended:  # a faulty sensor: hold, then plan again
            self._queue = PlanQueue()
            self.history.forget_observations()
            deltas = self._policy.calibration.delta_columns
            self._step(hold_action(self.history.last_action, deltas))

    def score(self) -> EpisodeResult:
        """Return the result of the episode, with the roughness of its commands if it is known."""
        roughness = measure_roughness([np.array(self.log.trace.actions)], self._policy.spec)
        ratio = compare_roughness(roughness, self._policy.calibration.roughness)
        return self.log.score({} if ratio is None else {ROUGHNESS: ratio})

    def _step(self, planned: np.ndarray, *, draw: bool = True) -> None:
        """Execute an action; draw frames unless another observation comes before the next plan."""
        now = self.log.steps
        if (rng := self._disturbances.push_rng(now)) is not None:
            with self._env.guard("push"):
                self._env.env.unwrapped.push(self._push, rng)  # type: ignore[attr-defined]
        obs = self.log.step(self._env.clip(round_binary(planned, self._policy.spec)), draw=draw)
        self.history.add_action(self._env.clip(planned))
        self._observe(obs, drawn=draw)

    def _observe(self, obs: np.ndarray, *, drawn: bool = True) -> None:
        """Add an observation to the history as the policy sees it, unless its sensor is faulty."""
        obs = self._disturbances.add_noise(obs)
        compared = self._monitor.check(obs, self.log.steps)
        self.log.outside += compared.outside is not None and not self.log.ended
        self._is_jump = compared.is_jump
        if not drawn:
            return
        encoded = self._encode(obs)  # also after a jump, because a camera counts its frames
        if not self._is_jump:
            self.history.add_observation(encoded)
        if self._frames:
            picture = next(iter(self._env.last_frames.values()), None)
            picture = self._env.render() if picture is None else picture
            self.log.trace.frames.append(picture)

    def _encode(self, obs: np.ndarray) -> np.ndarray | FrameObservation:
        """Return the observation, or a function that encodes its frames if a plan needs it."""
        frames = self._camera.change(self._env.last_frames)
        if not frames:
            return obs
        self.frame_observations.append(FrameObservation(self._policy, {STATE_KEY: obs, **frames}))
        return self.frame_observations[-1]


class EnvRunner:
    """A policy, and `batch` environments in which it is rolled out side by side.

    A path is loaded, None as the shipped policy; a loaded policy is used as it is.
    """

    def __init__(
        self, policy: Policy | Path | None, config: RolloutConfig, *, device: str = "cpu", batch: int = 1
    ) -> None:
        if not isinstance(policy, Policy):
            policy = Policy.from_pretrained(policy).to(device).use_selection(config.select)
        self.policy = policy
        self.config = config
        self.sampling = change_sampling(policy.sampling, config.sampling)
        self.task = config.find_task(policy.record)
        self._envs = [make_adapter(self.task, policy.record) for _ in range(batch)]
        self._render_env: EnvAdapter | None = None
        self.rate_hz = find_rate(self.task, self._envs[0].env)
        check_push(self._envs[0], config)
        if config.camera != CameraCondition() and not policy.spec.cameras:
            raise ConfigError("this policy has no cameras to disturb: leave out the flags --camera-…")

    def run_one(self, seed: int, *, frames: bool = False) -> EpisodeResult:
        """Run one episode to its end; `frames` keeps pictures in the trace if the task cannot draw."""
        env = self._envs[0]
        has_cameras = bool(self.policy.spec.cameras)  # whose frames are kept as they are
        frames = frames and (has_cameras or not self.task.drawing.can_draw)
        if frames and not has_cameras:
            env = self._render_env = self._render_env or self.make_render_env()
        (result,) = self._run([RunningEpisode(self, env, seed, frames=frames)])
        return result

    def make_render_env(self) -> EnvAdapter:
        """Make the environment once more, with pictures; raise `EnvError` if it does not draw any."""
        name = self._envs[0].name
        with self._envs[0].guard("its metadata"):
            modes = [str(mode) for mode in self._envs[0].env.metadata.get("render_modes") or ()]
        if "rgb_array" not in modes:
            raise EnvError(
                f"environment {name} cannot be rendered: it needs the render mode rgb_array in its metadata, "
                f"got {', '.join(modes) or 'none'}; leave out --render, or add that mode"
            )
        if not has_display():
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # SDL would print that it finds no display
        choose_mujoco_renderer()
        return make_adapter(with_env_kwargs(self.task, {"render_mode": "rgb_array"}), self.policy.record)

    def run(self, seeds: Sequence[int]) -> list[EpisodeResult]:
        """Run at most `batch` episodes side by side, each to its end; all plans are made in one batch."""
        envs = self._envs[: len(seeds)]
        return self._run([RunningEpisode(self, env, seed) for env, seed in zip(envs, seeds, strict=True)])

    def _run(self, episodes: Sequence[RunningEpisode]) -> list[EpisodeResult]:
        policy, config = self.policy, self.config
        chunk = policy.check_steps(config.chunk or policy.chunk)
        longest = policy.model.config.longest_chunk
        steps = count_planned(chunk, config.condition.latency_steps, longest)
        while running := [episode for episode in episodes if not episode.log.ended]:
            started = time.perf_counter()
            if len(running) > 1:
                self._encode([obs for episode in running for obs in episode.frame_observations])
            plans = policy.plan_batch(
                [episode.history for episode in running],
                generators=[episode.generator for episode in running],
                steps=steps,
                sampling=self.sampling,
            )
            seconds = (time.perf_counter() - started) / len(running)
            for episode, plan in zip(running, plans, strict=True):
                calls = policy.count_calls(plan, self.sampling)
                episode.log.add_plan(seconds, planned=steps, network_calls=calls)
                episode.run(plan.actions)
        return [episode.score() for episode in episodes]

    def _encode(self, observations: Sequence[FrameObservation]) -> None:
        """Encode the frames of several episodes in one batch, unless that was done before."""
        new = [obs for obs in observations if obs.encoded is None]
        names = new[0].parts if new else ()
        batch = {name: np.stack([obs.parts[name] for obs in new]) for name in names}
        for obs, encoded in zip(new, self.policy.encode(batch) if new else (), strict=True):
            obs.encoded = encoded


def check_push(env: EnvAdapter, config: RolloutConfig) -> None:
    """Raise `ConfigError` if pushes are asked for in an environment without them."""
    if config.condition.push:
        with env.guard("its attribute push"):
            can_push = hasattr(env.env.unwrapped, "push")
        if not can_push:
            raise ConfigError(f"nothing can be pushed in {env.name}: leave out --push")


def make_adapter(task: Task, record: RunRecord) -> EnvAdapter:
    """Make the environment of a task; raise `EnvError` if its observations or actions do not fit a run."""
    spec, obs_keys = record.spec, record.config.demos.obs_keys
    env = EnvAdapter.open(task, {}, obs_keys=obs_keys, obs_dim=spec.plain_dim, cameras=record.cameras)
    env.check_sizes(spec.plain_dim, spec.act_dim)
    return env


def change_sampling(own: Sampling, changes: Sequence[str]) -> Sampling:
    """Return sampling settings with some changed, each given as "name=value"."""
    settings, values = own.to_dict(), dict[str, object]()
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or name not in settings:
            available = ", ".join(f"{key}={now}" for key, now in settings.items()) or "none"
            raise ConfigError(f"{change!r} is not a sampling setting of this policy; available: {available}")
        try:
            values[name] = decode_json(value)
        except ValueError:
            values[name] = value
    return own.change(values)
