"""Score a policy on recorded episodes: likelihood, action error by horizon and calibration of σ."""

from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta
from torch import Tensor
from tqdm import tqdm

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig, Sampling
from nsde_policy.data import Demonstrations
from nsde_policy.data.angles import wrap_columns
from nsde_policy.errors import ConfigError
from nsde_policy.interface.planner import round_binary
from nsde_policy.interface.roughness import square_second_differences
from nsde_policy.methods.base import BatchRng
from nsde_policy.policy.policy import Policy

from ..statistics import EpisodeSums, FloatArray
from .episodes import (
    FrameBatch,
    ScoredEpisodes,
    choose_frames,
    choose_stride,
    iterate_frames,
    load_features,
    select_episodes,
    thin_out,
)
from .linear_model import Predictor, fit_linear_model
from .result import COVERAGE_LEVELS, ActionScale, Score

FEWEST_ACTIONS = 8
"""Actions that are compared if the chunk is shorter, as far as the method plans, to show how errors grow."""
TRAINING_FRAMES, FITTED_FRAMES = 300, 20_000
"""About how many training frames are scored for comparison, and how many the linear model is fitted to."""
ROWS = 8192
"""Plans sampled in one batch. Random numbers depend on it, therefore it is the same on every device."""


@dataclass(frozen=True)
class ScoreConfig(BaseConfig):
    """Settings of a score on recorded episodes."""

    horizon: Count | None = None
    """Actions of a plan that are compared with recorded ones; None for the chunk, or `FEWEST_ACTIONS`."""
    samples: Count = 39
    """Plans sampled from each frame; with more, the mean of the plans changes little."""
    stride: Annotated[int, Meta(ge=0)] = 0
    """Distance between the frames that are planned from; 0 chooses about 1000 frames."""


def score(policy: Policy | Path | str, demos: Path | str, **settings: int | None) -> Score:
    """Score a policy on the episodes of a store that it has not seen, as `nsde-policy score` does.

        score = nsde_policy.score("runs/arm", "my_robot")
        print(score)                       # the verdict in three lines
        score.error("sample").compute()    # error by period, in standard deviations of the actions

    Args:
        policy: A policy, or a run directory.
        demos: Recorded episodes of any format.
        settings: Fields of `ScoreConfig`, such as `samples=100`.
    """
    if not isinstance(policy, Policy):
        policy = Policy.from_pretrained(policy)
    config = ScoreConfig(**settings)  # type: ignore[arg-type]  # the class checks its fields
    scored, name = select_episodes(policy, Path(demos)), policy.record.config.method
    return score_episodes(policy, scored, config, name=name)


def score_episodes(
    policy: Policy,
    scored: ScoredEpisodes,
    config: ScoreConfig,
    *,
    name: str,
    sampling: Sampling | None = None,
) -> Score:
    """Score a policy on loaded episodes, see `select_episodes`; `sampling` is by default the policy's own."""
    demos = scored.demos
    longest = int(max(demos.lengths))
    if config.horizon is not None and config.horizon > longest:
        raise ConfigError(f"the longest episode has {longest} frames: lower --horizon {config.horizon}")
    farthest = policy.model.config.longest_chunk or FEWEST_ACTIONS
    usual = max(policy.chunk, min(FEWEST_ACTIONS, farthest, longest))
    horizon = policy.check_steps(config.horizon or usual)
    stride = config.stride or choose_stride(demos)
    scorer = FrameScorer(policy, demos, config, horizon, sampling)
    frames = choose_frames(demos, stride)
    demos = load_features(scored, policy)
    training: dict[str, EpisodeSums] = {}
    if scored.training is not None:
        trained = load_features(thin_out(scored.training, FITTED_FRAMES), policy)
        scorer.linear_model = _fit_linear_model(trained, policy, horizon)
        on_training = FrameScorer(policy, trained, config, horizon, sampling)
        on_training.add_all(trained, choose_frames(trained, max(1, len(trained.obs) // TRAINING_FRAMES)))
        training = on_training.sums()
    scorer.add_all(demos, frames)
    scorer.add_roughness(demos)
    context = {
        "run": name,
        "method": policy.record.config.method,
        "train_seed": policy.record.seed,
        "demos": str(demos.source),
        "selection": scored.note,
        "seen_in_training": scored.seen,
        "episodes": list(scored.episodes),
        "frames": len(demos.obs),
        "scored_frames": int(frames.sum()),
        "chunk": policy.chunk,
        "horizon": horizon,
        "samples": config.samples,
        "stride": stride,
        "sampling": (sampling or policy.model.config.sampling).to_dict(),
        "learned_sampling": policy.model.learned_sampling(sampling).to_dict(),
    }
    return Score(name, policy.record, context, scorer.scale, scorer.sums(), training)


def _fit_linear_model(demos: Demonstrations, policy: Policy, horizon: int) -> Predictor:
    """Fit the linear model to all frames of training episodes."""
    whole = np.ones(len(demos.obs), bool)
    (batch,) = iterate_frames(demos, policy.record, whole, horizon=horizon, batch=len(whole))
    states = batch.pairs.x.double().numpy().reshape(len(whole), policy.spec.history, -1)
    return fit_linear_model(states, batch.actions, policy.spec)


class SharedRng(BatchRng):
    """Random numbers of all rows from one generator on the CPU, equal for every device of the model."""

    def __init__(self, rows: int, generator: torch.Generator, device: str) -> None:
        super().__init__([generator], device)
        self._rows, self._generator = rows, generator

    def __len__(self) -> int:
        return self._rows

    def normal(self, *shape: int) -> Tensor:
        """Sample standard normal numbers, (rows, *shape)."""
        return torch.randn((self._rows, *shape), generator=self._generator).to(self._device)

    def uniform(self, *shape: int) -> Tensor:
        """Sample uniform numbers in [0, 1), (rows, *shape)."""
        return torch.rand((self._rows, *shape), generator=self._generator).to(self._device)


class FrameScorer:
    """Sums of all figures over batches of frames."""

    def __init__(
        self,
        policy: Policy,
        demos: Demonstrations,
        config: ScoreConfig,
        horizon: int,
        sampling: Sampling | None,
    ) -> None:
        self.scale = ActionScale.measure(demos, policy.spec)
        self._model, self._spec, self._history = policy.model, policy.spec, policy.spec.history
        self._record, self._chunk = policy.record, policy.chunk
        self._learned = policy.model.learned_sampling(sampling)
        self._samples, self._horizon, self._sampling = config.samples, horizon, sampling
        self._device, self._episodes = policy.device, len(demos)
        self._generator = torch.Generator().manual_seed(0)  # the only randomness of a score
        self._sums: dict[str, tuple[FloatArray, FloatArray]] = {}
        self.linear_model: Predictor | None = None
        """Linear model of the training episodes, to compare with."""

    def sums(self) -> dict[str, EpisodeSums]:
        """Return the sums by figure."""
        squares = ("error", "roughness")
        return {name: EpisodeSums(*pair, root=name.startswith(squares)) for name, pair in self._sums.items()}

    def add_all(self, demos: Demonstrations, frames: npt.NDArray[np.bool_]) -> None:
        """Score the chosen frames of the demonstrations in batches."""
        rows = max(1, ROWS // self._samples)
        batches = iterate_frames(demos, self._record, frames, horizon=self._horizon, batch=rows)
        with tqdm(total=int(frames.sum()), desc="scoring", unit="frame", leave=False, disable=None) as bar:
            for batch in batches:
                self.add(batch)
                bar.update(len(batch.episode))

    def add(self, batch: FrameBatch) -> None:
        """Score a batch of frames."""
        x = batch.pairs.x
        states = x.reshape(len(x), self._history, -1).to(self._device)
        x_next = batch.pairs.x_next.to(self._device)
        self._add_log_prob(batch, states, x_next)
        self._add_step_coverage(batch, states)
        self._add_errors(batch, states)

    def _add_log_prob(self, batch: FrameBatch, states: Tensor, x_next: Tensor) -> None:
        if not self._model.has_likelihood:
            return
        log_prob = self._model.log_prob_step(states, x_next, sampling=self._learned)
        followed = (batch.pairs.weight > 0).all(1).numpy()
        self._add(batch, "log_prob_action", log_prob.action.double().cpu().numpy())
        if log_prob.state is not None:
            self._add(batch, "log_prob_state", log_prob.state.double().cpu().numpy(), followed)

    def _add_step_coverage(self, batch: FrameBatch, states: Tensor) -> None:
        """Count recorded steps inside the central intervals of the predicted normal distribution."""
        if not self._model.reports_std:
            return
        mean, std = (
            part.double().cpu().numpy() for part in self._model.predict_step(states, sampling=self._learned)
        )
        error = wrap_columns(batch.pairs.x_next.double().numpy() - mean, self._spec.circular)
        bounds = np.array([NormalDist().inv_cdf(0.5 + level / 2) for level in COVERAGE_LEVELS])
        inside = np.abs(error / std)[:, None] <= bounds[:, None]
        obs_dim = self._spec.obs_dim
        followed = (batch.pairs.weight[:, :obs_dim] > 0).numpy()[:, None]
        self._add(batch, "coverage_actions", inside[..., obs_dim:])
        self._add(batch, "coverage_observations", inside[..., :obs_dim], followed)

    def _add_errors(self, batch: FrameBatch, states: Tensor) -> None:
        recorded, actions, n = batch.recorded[..., None], batch.actions, len(states)
        rows = states.repeat_interleave(self._samples, 0)
        plans = self._plan(rows, self._horizon, self._generator)
        plans = plans.reshape(n, self._samples, self._horizon, -1)
        middle = plans[:, 0] + self._wrap(plans - plans[:, :1]).mean(1)
        last = states[:, :1, self._spec.obs_dim :].double().cpu().numpy()
        errors = self._wrap(plans - actions[:, None])
        self._add(batch, "error_sample", np.square(errors).mean(1), recorded)
        guesses = {"mean_plan": middle, "repeat": last}
        if self.linear_model is not None:
            guesses["linear"] = self.linear_model(states.double().cpu().numpy())
        for name, guess in guesses.items():
            self._add(batch, f"error_{name}", np.square(self._wrap(guess - actions)), recorded)

    def add_roughness(self, demos: Demonstrations) -> None:
        """Add the roughness of the recorded commands, and of one plan every chunk, executed in full."""
        commands, generator = np.zeros(demos.act.shape), torch.Generator().manual_seed(0)
        planned = (np.arange(len(commands)) - np.repeat(demos.starts, demos.lengths)) % self._chunk == 0
        first = 0  # frame of the next command
        for batch in iterate_frames(demos, self._record, planned, horizon=self._chunk, batch=ROWS):
            states = batch.pairs.x.reshape(len(batch.episode), self._history, -1).to(self._device)
            followed = self._plan(states, self._chunk, generator)[batch.recorded]
            commands[first : first + len(followed)] = followed
            first += len(followed)
        streams: dict[str, np.ndarray] = {"planned": commands, "recorded": demos.act}
        for name, actions in streams.items():
            squares = [
                square_second_differences(part, self._spec)
                for part in np.split(actions, demos.episode_ends[:-1])
            ]
            self._sums[f"roughness_{name}"] = (
                np.array([each.sum() for each in squares]),
                np.array([float(len(each)) for each in squares]),
            )

    def _plan(self, states: Tensor, steps: int, generator: torch.Generator) -> FloatArray:
        """Sample a plan for each row of states, (rows, steps, act_dim), with the commands of switches."""
        rng = SharedRng(len(states), generator, self._device)
        with torch.no_grad():
            plans = self._model.plan(states, steps=steps, rng=rng, sampling=self._sampling)
        return round_binary(plans.double().cpu().numpy(), self._spec)

    def _wrap(self, difference: FloatArray) -> FloatArray:
        return wrap_columns(difference, self.scale.angles)

    def _add(
        self, batch: FrameBatch, name: str, values: np.ndarray, counted: np.ndarray | bool = True
    ) -> None:
        """Add values (frames, ...) to the sums of their episodes, as far as they are counted."""
        counted = np.broadcast_to(counted, values.shape)
        if name not in self._sums:
            shape = (self._episodes, *values.shape[1:])
            self._sums[name] = (np.zeros(shape), np.zeros(shape))
        total, count = self._sums[name]
        np.add.at(total, batch.episode, np.where(counted, values, 0.0))
        np.add.at(count, batch.episode, counted)
