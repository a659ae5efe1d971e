"""What a camera will see under a policy's plan: predicted frames beside those that follow in the environment.

A policy plays an episode up to one of its plans. That plan is executed to its end, without planning again,
and a video model predicts the frames from the last ones before it and from the same actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsde_policy.bounds import Count, Natural, NonNegative, Positive
from nsde_policy.config import BaseConfig
from nsde_policy.data.frames import resize_frames
from nsde_policy.errors import ConfigError
from nsde_policy.eval.generate import find_recorded_images
from nsde_policy.eval.rollout import EpisodeRunner, RolloutConfig, Trace, make_adapter
from nsde_policy.eval.video.evaluate import (
    BASELINES_OF_VIDEO,
    FilmedPredictor,
    VideoScores,
    VideosToScore,
    evaluate_video,
    make_predictor,
    repeat_last_frame,
)
from nsde_policy.inference.policy import Policy
from nsde_policy.tasks import Task, find_rate, get_task_of_run
from nsde_policy.tasks.adapter import EnvAdapter
from nsde_policy.video.run import VideoRecord, load_video_model, read_video_record
from nsde_policy.video.spaces import to_unit
from nsde_policy.video.windows import VIDEO_KEY, ActionRange, join_actions

PLAN_SECONDS = 1.6
"""Length of a prediction, unless a plan of the policy is shorter."""
PREDICTED = "predicted"
"""Title of the predicted frames."""
RATE_ERROR = 0.01
"""Largest relative difference between the rates of a video model and an environment."""


@dataclass(frozen=True)
class PlanConfig(BaseConfig):
    """Episodes and moments whose plans are predicted."""

    seed: Natural = 100_000
    """Seed of the first episode."""
    episodes: Count = 1
    """Number of episodes, on consecutive seeds, with one plan each."""
    step: Natural = 24
    """Control period from which on the next plan of the policy is predicted."""
    seconds: Positive | None = None
    """How far to predict; None for 1.6 s, or the length of a plan if that is shorter."""
    alpha: NonNegative | None = None
    """Strength of the denoiser of a Neural SDE for video; None for the settings'."""
    env: str | None = None
    """Task or environment to play, see `get_task`; None for the one that the policy was trained for."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""


@dataclass(frozen=True, eq=False)
class PlanPrediction:
    """Predicted and true frames under the plans of a policy."""

    model: str
    """Run directory of the video model."""
    seeds: tuple[int, ...]
    """Episodes; those that ended before the end of the plan are left out."""
    periods: tuple[int, ...]
    """Control period of each plan."""
    period_s: float
    """Time between two frames."""
    context: Tensor
    """Frames before the first plan, (context, size, size, 3) uint8."""
    rows: Mapping[str, Tensor]
    """Frames under the first plan by title, (steps, 3, size, size) from -1 to 1; the true ones first."""
    scores: VideoScores
    """Figures over all plans."""

    @property
    def seconds(self) -> float:
        """How far the frames reach."""
        return self.scores.steps * self.period_s

    def to_dict(self) -> dict[str, Any]:
        """Return figures, seeds and moments as plain numbers and lists."""
        facts = {
            "model": self.model,
            "seconds": self.seconds,
            "seeds": list(self.seeds),
            "control_periods": list(self.periods),
        }
        return {**facts, **self.scores.to_dict()}


def predict_plans(
    video_run: Path, policy_run: Path | None, config: PlanConfig, *, device: str = "cpu"
) -> PlanPrediction:
    """Play a policy, and predict what its camera sees under its plans.

    Args:
        video_run: Run directory of a video model that was trained with actions.
        policy_run: Run directory of a policy; None for the one shipped with the package.
        config: Episodes and moments.
        device: Where the video model runs.

    Raises:
        ConfigError: If model, policy and environment do not fit, or no episode reaches the end of a plan.
    """
    record = read_video_record(video_run)
    if not record.act_low:
        raise ConfigError(
            f"the video model {video_run} was trained without actions, so a plan cannot change what it "
            "predicts: train one on demonstrations with `nsde-policy video train STORE --actions`"
        )
    player = PlanPlayer(policy_run, record, config)
    seeds, periods, videos = _play_plans(player, config)
    model = load_video_model(video_run, device=device)
    predict, seen = FilmedPredictor(make_predictor(model, alpha=config.alpha), 0), player.context
    scores = evaluate_video({PREDICTED: predict}, videos, steps=player.steps, context=seen, device=device)
    assert predict.frames is not None
    first = videos.select(slice(0, 1), seen + player.steps, device)
    given, plan = first.frames[:, :seen], first.actions[:, seen - 1 : -1]
    rows = {
        "true": to_unit(first.frames[0, seen:]),
        PREDICTED: predict.frames,
        next(iter(BASELINES_OF_VIDEO)): repeat_last_frame(given, plan, player.steps)[0],
    }
    return PlanPrediction(
        str(video_run), seeds, periods, player.period_s, first.frames[0, :seen], rows, scores
    )


def _play_plans(
    player: "PlanPlayer", config: PlanConfig
) -> tuple[tuple[int, ...], tuple[int, ...], VideosToScore]:
    """Return seeds, periods of the plans, and frames with actions of episodes that last long enough."""
    played = [(seed, player.play(seed)) for seed in range(config.seed, config.seed + config.episodes)]
    kept = [(seed, *found) for seed, found in played if found is not None]
    if not kept:
        raise ConfigError(
            f"no episode lasts to the end of a plan of {player.steps * player.period_s:g} s from control "
            f"period {config.step} on: choose a smaller --step, another --seed or more --episodes"
        )
    seeds, periods, traces = zip(*kept, strict=True)
    windows = [player.cut(trace, period) for period, trace in zip(periods, traces, strict=True)]
    frames, actions = (torch.from_numpy(np.stack(part)) for part in zip(*windows, strict=True))
    return seeds, periods, VideosToScore(frames, actions)


class PlanPlayer:
    """A policy and its environment with a camera, for plans that a video model can predict.

    Args:
        run: Run directory of the policy; None for the one shipped with the package.
        record: What the run of the video model says of itself.
        config: Episodes and moments.

    Raises:
        ConfigError: If camera, rate, actions or the length of plans do not fit the video model.
    """

    def __init__(self, run: Path | None, record: VideoRecord, config: PlanConfig) -> None:
        self.policy, self._record, settings = Policy.from_pretrained(run), record, record.settings()
        self.context, self._stride, self._size = settings.model.context, settings.stride, settings.size
        self.task, obs = _add_camera(get_task_of_run(self.policy.record, config.env), self.policy)
        self.task = self.task.with_env_kwargs(config.env_kwargs)
        self._env = make_adapter(self.task, self.policy.record, {})
        camera = _choose_camera(self._env, self.task, obs)
        self.config = RolloutConfig(self.task, images={VIDEO_KEY: camera})
        rate_hz = self._check_rate(find_rate(self.task, self._env.env))
        self.period_s = self._stride / rate_hz
        """Time between two frames."""
        self._check_actions()
        self.steps = self._count_frames(config.seconds)
        """Number of frames to predict."""
        self._first = max(config.step, (self.context - 1) * self._stride)

    def _check_rate(self, rate_hz: float | None) -> float:
        if rate_hz is None:
            raise ConfigError(
                f"{self._env.name} does not say its control rate: add `render_fps` to its metadata, or `dt`"
            )
        found, expected = rate_hz / self._stride, self._record.rate_hz
        if expected is not None and abs(found / expected - 1) > RATE_ERROR:
            raise ConfigError(
                f"the video model predicts {expected:g} frames per second, the camera gives {found:g} (every "
                f"{self._stride}. of {rate_hz:g} control periods): train a model on videos of this robot"
            )
        return rate_hz

    def _check_actions(self) -> None:
        found, expected = self.policy.act_dim * self._stride, len(self._record.act_low)
        if found != expected:
            raise ConfigError(
                f"actions between two frames have {found} numbers under this policy (stride {self._stride}), "
                f"the video model was trained with {expected}: train one on demonstrations of this robot"
            )

    def _count_frames(self, seconds: float | None) -> int:
        """Return how many frames the wanted time has; without one, at most as many as a plan."""
        steps = max(round((seconds or PLAN_SECONDS) / self.period_s), 1)
        longest = self.policy.model.config.longest_chunk
        if seconds is None and longest is not None:
            steps = max(min(steps, longest // self._stride), 1)
        self.policy.check_chunk(steps * self._stride)
        return steps

    def play(self, seed: int) -> tuple[int, Trace] | None:
        """Play one episode to the end of a plan; return the control period of the plan, and what happened.

        Returns None if the episode ends earlier.
        """
        episode, policy = EpisodeRunner(self, self._env, seed), self.policy
        while episode.steps < self._first and not episode.ended:
            episode.run(policy.plan(episode.history, generator=episode.generator).actions)
        period, length = episode.steps, self.steps * self._stride
        if not episode.ended:
            plan = policy.plan(episode.history, generator=episode.generator, chunk=length)
            episode.run(plan.actions, periods=length)
        return (period, episode.trace) if episode.steps == period + length else None

    def cut(self, trace: Trace, period: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the frames around a plan, (context + steps, size, size, 3) uint8, and scaled actions."""
        rows = period + self._stride * np.arange(1 - self.context, self.steps + 1)
        frames = np.stack([trace.images[VIDEO_KEY][row].decompress() for row in rows])
        actions = np.array(trace.actions, np.float32)
        joined = join_actions(actions, np.array([len(actions)]), self._stride)
        joined = joined[np.minimum(rows, len(actions) - 1)]  # none follows the last frame
        limits = ActionRange(self._record.act_low, self._record.act_high)
        return resize_frames(frames, self._size), limits.scale(joined)


def _add_camera(task: Task, policy: Policy) -> tuple[Task, str]:
    """Return the task with a camera beside what the policy observes, and the name of these observations."""
    choices = {} if policy.spec.cameras else task.observations
    for name, choice in choices.items():
        if choice.recorded_with:
            return task.with_env_kwargs(choice.recorded_with), name
    return task, ""


def _choose_camera(env: EnvAdapter, task: Task, obs: str) -> str:
    """Return the part of the observation that is predicted: the only camera, or the one of `VIDEO_KEY`."""
    cameras = find_recorded_images(env, task, obs)
    if len(cameras) == 1:
        return next(iter(cameras.values()))
    if VIDEO_KEY not in cameras:
        found = f"has the cameras {', '.join(cameras)}" if cameras else "has no camera"
        raise ConfigError(
            f"{env.name} {found}, expected one colour picture in its observation: choose another environment "
            "with --env, its observation with --env-kwargs, or wrap it"
        )
    return cameras[VIDEO_KEY]
