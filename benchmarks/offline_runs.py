"""Train methods on recorded episodes and score them on held-out ones: likelihood, error, coverage of σ.

Episodes are split by a seed: a tenth is scored, a tenth of the others calibrates σ, and every method is
trained on the rest; final weights, nothing selected. Two models without a network are fitted as well: a
Gaussian random walk, in which the state stays as it is, and a linear model of two states.

Likelihoods are in nats per control period, in native units. A method without one gets a normal distribution
around the mean of its plans, whose σ per action is the root mean square error on the calibration episodes.
The Neural SDE is scored as trained and with calibrated σ.
"""

import argparse
import json
import math
import shutil
from fnmatch import fnmatch
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from experiment import SMOKE, change_config, make_name

from nsde_policy.data import Demonstrations, load_demonstrations
from nsde_policy.data.angles import wrap_columns
from nsde_policy.data.split import split_episodes
from nsde_policy.data.statistics import DemoStatistics, measure_statistics
from nsde_policy.errors import ConfigError
from nsde_policy.eval.machine import device_name
from nsde_policy.eval.score.episodes import ScoredEpisodes, choose_frames, choose_stride
from nsde_policy.eval.score.result import COVERAGE_LEVELS, Score
from nsde_policy.eval.score.scorer import ScoreConfig, score_episodes
from nsde_policy.eval.statistics import EpisodeSums, FloatArray, estimate_difference
from nsde_policy.files import replace_file
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task
from nsde_policy.training.dataset import build_transitions, resolve_first_action
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.std_scale import measure_std_factors, scale_std
from nsde_policy.training.train import pick_device, train_run

Figures = dict[str, EpisodeSums | None]
"""Figures of a row as sums over the episodes, by name; None for those that a method does not have."""
CALIBRATED = ", calibrated"
SMOKE_EPISODES = 20
HISTORY = 2
"""States that the linear model sees."""
HORIZON = 16
"""Actions ahead that are compared, as far as a method plans them."""


class Split:
    """Episodes for training, calibration and scores."""

    def __init__(self, path: Path, seed: int, *, smoke: bool) -> None:
        demos = load_demonstrations(path)
        demos = demos.take(SMOKE_EPISODES) if smoke else demos
        self.seed = seed
        known, self.held_out = split_episodes(demos, 0.1, seed=seed)
        self.training, calibration = split_episodes(known, 0.1, seed=seed)
        self.test, self.calibration = demos.select(self.held_out), known.select(calibration)

    def scored(self, demos: Demonstrations) -> ScoredEpisodes:
        """Return episodes as ones that no training has seen."""
        return ScoredEpisodes(demos, tuple(range(len(demos))), False, f"{len(demos)} held-out episodes")


def make_config(name: str, given: dict[str, Any], statistics: DemoStatistics, *, smoke: bool) -> RunConfig:
    """Return the settings of a training: a preset, `auto` by default, changed as the experiment says."""
    config = get_task("none").preset(
        given.get("preset", "auto"), given.get("method", name), statistics=statistics
    )
    config = change_config(config, given.get("change", {})).replace_parts(selection={"select": "none"})
    return config.replace_parts(train={"steps": SMOKE["steps"], "batch_size": 32}) if smoke else config


def train_method(name: str, config: RunConfig, split: Split, args: argparse.Namespace) -> RunDirectory:
    """Train a method, or resume it, and return its run directory."""
    path = args.out / "runs" / f"{make_name(name)}-{split.seed}"
    print(f"{name}: {config.train.steps} steps", flush=True)
    return train_run(
        split.training,
        config,
        path,
        options=TrainOptions(seed=split.seed, device=pick_device(args.device), resume=path.exists()),
    )


def copy_calibrated(run: RunDirectory, split: Split, device: str) -> RunDirectory:
    """Copy the run of the Neural SDE and calibrate the σ of the copy."""
    copy = RunDirectory(run.path.with_name(f"{run.path.name}-calibrated"))
    shutil.rmtree(copy.path, ignore_errors=True)
    shutil.copytree(run.path, copy.path)
    factors = scale_std(copy, measure_std_factors(copy, split.calibration, device=device))
    print(f"factors of σ: {np.quantile(factors, (0, 0.25, 0.5, 0.75, 1)).round(2).tolist()}", flush=True)
    return copy


def score_policy(run: RunDirectory, split: Split, samples: int, device: str) -> tuple[Figures, bool]:
    """Return the figures of a run, and whether its likelihood is that of a fitted normal distribution."""
    policy = Policy.from_pretrained(run.path).to(device)
    longest = policy.model.config.longest_chunk or HORIZON
    config = ScoreConfig(horizon=min(HORIZON, longest), samples=samples)

    def score(demos: Demonstrations) -> Score:
        return score_episodes(policy, split.scored(demos), config, name=run.path.name)

    found = score(split.test)
    sums = dict(found.sums)
    figures: Figures = {
        "error": found.error("sample"),
        "error_mean_plan": found.error("mean_plan"),
        "error_repeat": found.error("repeat"),
        "coverage_action": found.coverage("coverage_actions"),
        "coverage_observation": found.coverage("coverage_observations"),
        "log_prob_action": sums.get("log_prob_action"),
        "log_prob_state": sums.get("log_prob_state"),
    }
    gaussian = "log_prob_action" not in sums
    if gaussian:
        figures["log_prob_action"] = fit_normal(
            score(split.calibration).sums["error_mean_plan"], sums["error_mean_plan"]
        )
    return figures, gaussian


def fit_normal(calibration: EpisodeSums, test: EpisodeSums) -> EpisodeSums:
    """Return the log-likelihood of the first actions, given squared errors on two sets of episodes."""
    variance = calibration.total[:, 0].sum(0) / calibration.count[:, 0].sum(0)
    total = test.total[:, 0] / variance + test.count[:, 0] * np.log(2 * math.pi * variance)
    return EpisodeSums(-0.5 * total.sum(-1), test.count[:, 0, 0])


class SimpleModel:
    """Predicts the next state x' = (next observation, action) with a constant σ of each dimension.

    Args:
        linear: Fit a linear function of the last states by least squares; else the state stays as it is.
    """

    def __init__(self, split: Split, config: RunConfig, *, linear: bool) -> None:
        self.config = config
        self.weights = None
        x, x_next, known = self._read(split.training)
        if linear:
            self.weights = np.linalg.lstsq(self._features(x), x_next - x[:, : x_next.shape[1]], rcond=None)[0]
        error, known, _ = self.errors(split.calibration)
        self.variance = (np.square(error) * known).sum(0) / known.sum(0)

    def _read(self, demos: Demonstrations) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
        pairs = build_transitions(demos, self.config.demos, history=HISTORY, final_action_weight=1.0)
        return pairs.x.double().numpy(), pairs.x_next.double().numpy(), (pairs.weight > 0).numpy()

    def _features(self, x: FloatArray) -> FloatArray:
        return np.concatenate([x, np.ones((len(x), 1))], axis=1)

    def errors(self, demos: Demonstrations, chosen: Any = slice(None)) -> tuple[FloatArray, Any, Any]:
        """Return the errors of some frames, which of them are known, and the numbers of their episodes."""
        x, x_next, known = (part[chosen] for part in self._read(demos))
        change = 0.0 if self.weights is None else self._features(x) @ self.weights
        angles = [*demos.angles, *(demos.obs.shape[1] + column for column in demos.act_angles)]
        episode = np.repeat(np.arange(len(demos)), demos.lengths)[chosen]
        return wrap_columns(x_next - x[:, : x_next.shape[1]] - change, angles), known, episode

    def score(self, demos: Demonstrations) -> Figures:
        """Return the figures on scored frames, as `score_policy` does."""
        chosen = choose_frames(demos, choose_stride(demos))
        error, known, episode = self.errors(demos, chosen)
        log_prob = -0.5 * (np.square(error) / self.variance + np.log(2 * math.pi * self.variance))
        bounds = [NormalDist().inv_cdf(0.5 + level / 2) for level in COVERAGE_LEVELS]
        inside = np.abs(error / np.sqrt(self.variance))[:, None] <= np.array(bounds)[:, None]
        act, everything = slice(demos.obs.shape[1], None), known.all(1)

        def add(values: FloatArray, counted: Any) -> EpisodeSums:
            counted = np.broadcast_to(counted, values.shape)
            total, count = np.zeros((2, len(demos), *values.shape[1:]))
            np.add.at(total, episode, np.where(counted, values, 0.0))
            np.add.at(count, episode, counted)
            return EpisodeSums(total, count)

        obs = slice(None, act.start)
        return {
            "log_prob_action": add(log_prob[:, act].sum(1), True),
            "log_prob_state": add(log_prob.sum(1), everything),
            "coverage_action": add(inside[..., act], True).pool(-1),
            "coverage_observation": add(inside[..., obs], known[:, None, obs]).pool(-1),
        }


def to_dict(figures: Figures, gaussian: bool, reference: Figures) -> dict[str, Any]:
    """Return figures with 95 % intervals over episodes, and differences to the reference."""
    row: dict[str, Any] = {"gaussian": gaussian}
    for name, found in figures.items():
        if found is not None:
            row[name] = found.intervals.to_dict()
    for name in ("log_prob_action", "log_prob_state"):
        own, other = figures.get(name), reference.get(name)
        if own is not None and other is not None and own is not other:
            row[f"{name}_difference"] = estimate_difference(own, other).to_dict()
    return row


def score_split(values: dict[str, Any], split: Split, args: argparse.Namespace) -> None:
    """Train and score all methods on a split; write the results after each of them."""
    statistics, samples = measure_statistics(split.training), 2 if args.smoke else values["samples"]
    simple = resolve_first_action(split.training, get_task("none").preset("fast"))
    figures: dict[str, tuple[Figures, bool]] = {
        "random walk": (SimpleModel(split, simple, linear=False).score(split.test), True),
        "linear model": (SimpleModel(split, simple, linear=True).score(split.test), True),
    }
    chosen = {
        name: make_config(name, given, statistics, smoke=args.smoke)
        for name, given in values["trainings"].items()
        if any(fnmatch(name, pattern) for pattern in args.rows)
    }
    for method, config in chosen.items():
        run = train_method(method, config, split, args)
        figures[method] = score_policy(run, split, samples, args.device)
        if figures[method][0]["coverage_action"] is not None:
            calibrated = copy_calibrated(run, split, args.device)
            figures[method + CALIBRATED] = score_policy(calibrated, split, samples, args.device)
        reference = next((each for name, (each, _) in figures.items() if name.endswith(CALIBRATED)), {})
        results = {
            "demos": values["demos"],
            "seed": split.seed,
            "machine": f"{device_name(args.device)}, torch {torch.__version__}",
            "scored_episodes": list(split.held_out),
            "rows": {name: to_dict(*each, reference) for name, each in figures.items()},
        }
        file = args.out / f"results_{split.seed}.json"
        replace_file(file, json.dumps(results, indent=1, allow_nan=False).encode())
        likelihood = results["rows"][method]["log_prob_action"]["value"]
        print(f"{method}, split {split.seed}: log p(action) {likelihood:.1f}, in {file}", flush=True)


def run_offline(values: dict[str, Any], args: argparse.Namespace) -> None:
    """Score every split of an experiment."""
    if args.demos is None:
        raise ConfigError(f"the experiment needs {values['demos']}: give its folder with --demos")
    torch.set_num_threads(1)
    for seed in args.train_seeds or (values["splits"][:1] if args.smoke else values["splits"]):
        score_split(values, Split(args.demos / values["demos"], seed, smoke=args.smoke), args)
