"""Score methods on held-out episodes of a real robot: likelihood, action error by horizon, coverage of σ.

    python benchmarks/g1_offline.py --demos ../shared/demos/g1_real.zarr --out out/g1
    python benchmarks/g1_offline.py --table out/g1/results.json

Episodes are split by `--seed`: a tenth is scored, a tenth of the others calibrates σ, and every method is
trained on the rest, with the preset `auto`; final weights, nothing selected. Two models without a network are
fitted as well: a Gaussian random walk, in which the state stays as it is, and a linear model of two states.

Likelihoods are in nats per control period, in native units. A method without one gets a normal distribution
around the mean of its plans, whose σ per action is the root mean square error on the calibration episodes, as
for the random walk and the linear model. The Neural SDE is scored as trained and with calibrated σ.
`--methods neural_sde:step_inputs=1,history_noise=shared,steps=5000 diffusion:preset=small,steps=5000` trains
other settings of a model, another number of steps or another preset.
Run it again to resume: finished trainings are kept.
"""

import argparse
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flag_types import parse_count, parse_count_or_zero
from result_files import read_results

from nsde_policy.data import Demonstrations, load_demonstrations
from nsde_policy.data.angles import wrap_columns
from nsde_policy.data.split import split_episodes
from nsde_policy.data.statistics import DemoStatistics, measure_statistics
from nsde_policy.errors import ConfigError, NsdePolicyError
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.offline.frames import ScoredEpisodes, choose_stride, find_parts
from nsde_policy.eval.offline.result import (
    COVERAGE_LEVELS,
    OfflineScore,
    choose_horizons,
    format_estimate,
)
from nsde_policy.eval.offline.score import OfflineConfig, score_episodes_offline
from nsde_policy.eval.offline.sums import EpisodeSums, FloatArray, estimate_difference
from nsde_policy.eval.statistics import Estimate
from nsde_policy.files import replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.registry import METHODS
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task
from nsde_policy.training.dataset import build_transitions, get_first_action, resolve_first_action
from nsde_policy.training.progress import pick_device
from nsde_policy.training.run import train_run
from nsde_policy.training.std_calibration import calibrate_std

Figures = dict[str, EpisodeSums | None]
"""Figures of a row as sums over the episodes, by name; None for those that a method does not have."""
CALIBRATED = ", calibrated"
HISTORY = 2
"""States that the linear model sees."""
HORIZON = 16
"""Actions ahead that are compared, as far as a method plans them."""


class Split:
    """Episodes for training, calibration and scores."""

    def __init__(self, path: Path, seed: int) -> None:
        demos = load_demonstrations(path)
        known, test, self.held_out = split_episodes(demos, 0.1, seed=seed)
        self.training, calibration, _ = split_episodes(known, 0.1, seed=seed, flag="--calibration")
        assert test is not None
        assert calibration is not None
        self.test, self.calibration = test, calibration

    def scored(self, demos: Demonstrations) -> ScoredEpisodes:
        """Return episodes as ones that no training has seen."""
        return ScoredEpisodes(demos, tuple(range(len(demos))), False, f"{len(demos)} held-out episodes")


def choose_config(name: str, statistics: DemoStatistics, steps: int) -> RunConfig:
    """Return the settings of `METHOD:NAME=VALUE,…`; raise `ConfigError` if a name or value is invalid."""
    method, _, changes = name.partition(":")
    values = {}
    for change in filter(None, changes.split(",")):
        key, given, value = change.partition("=")
        if not given:
            raise ConfigError(f"{change!r} has no value; write {change}=VALUE")
        values[key] = parse_value(value)
    preset, steps = values.pop("preset", "auto"), values.pop("steps", steps)
    config = get_task("none").preset(preset, method, statistics=statistics)
    if steps and config.train.steps > 1:
        config = config.replace_parts(train={"steps": steps})
    return replace(config, model=config.model.from_dict({**config.model.to_dict(), **values}))


def train_method(name: str, config: RunConfig, split: Split, args: argparse.Namespace) -> RunDirectory:
    """Train a method, unless that was done before, and return its run directory."""
    run = RunDirectory(args.out / "runs" / f"{name.replace(':', '-').replace(',', '-')}-{args.seed}")
    print(f"training {name}: {config.train.steps} steps", flush=True)
    return train_run(
        split.training,
        config,
        run.path,
        task="none",
        seed=args.seed,
        device=args.device,
        resume=run.path.exists(),
    )


def parse_value(text: str) -> Any:
    """Return a number, or a word as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def copy_calibrated(run: RunDirectory, split: Split, args: argparse.Namespace) -> RunDirectory:
    """Copy the run of the Neural SDE and calibrate the σ of the copy."""
    copy = RunDirectory(run.path.with_name(f"{run.path.name}-calibrated"))
    shutil.rmtree(copy.path, ignore_errors=True)
    shutil.copytree(run.path, copy.path)
    factor = calibrate_std(copy, split.calibration, device=args.device)
    assert factor is not None
    print(f"factors of σ: {np.quantile(factor, (0, 0.25, 0.5, 0.75, 1)).round(2).tolist()}", flush=True)
    return copy


def score_policy(run: RunDirectory, split: Split, args: argparse.Namespace) -> tuple[Figures, bool]:
    """Return the figures of a run, and whether its likelihood is that of a fitted normal distribution."""
    policy = Policy.from_pretrained(run.path).to(args.device)
    longest = policy.model.config.longest_chunk or HORIZON
    config = OfflineConfig(horizon=min(HORIZON, longest), samples=args.samples)

    def score(demos: Demonstrations) -> OfflineScore:
        return score_episodes_offline(
            policy, split.scored(demos), config, name=run.path.name, device=args.device
        )

    found = score(split.test)
    sums = dict(found.sums["all"])
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
            score(split.calibration).sums["all"]["error_mean_plan"], sums["error_mean_plan"]
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
        self.config, self.weights = config, None
        x, x_next, known = self._read(split.training)
        if linear:
            self.weights = np.linalg.lstsq(self._features(x), x_next - x[:, : x_next.shape[1]], rcond=None)[0]
        error, known, _ = self.errors(split.calibration)
        self.variance = (np.square(error) * known).sum(0) / known.sum(0)

    def _read(self, demos: Demonstrations) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
        pairs = build_transitions(
            demos, **get_first_action(self.config.demos), history=HISTORY, final_action_weight=1.0
        )
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
        chosen = find_parts(demos, chunk=1, stride=choose_stride(demos))["all"]
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
            row[name] = found.estimate().to_dict()
    for name in ("log_prob_action", "log_prob_state"):
        own, other = figures.get(name), reference.get(name)
        if own is not None and other is not None and own is not other:
            row[f"{name}_difference"] = estimate_difference(own, other).to_dict()
    return row


def print_table(results: Mapping[str, Any]) -> None:
    """Print likelihood, error by horizon and coverage of all rows, and the error of the repeated action."""
    shown = choose_horizons(HORIZON)

    def cell(row: Mapping[str, Any], name: str, *index: int) -> str:
        found = row.get(name)
        if found is None:
            return "–"
        value, low, high = (np.array(found[key], float) for key in ("value", "low", "high"))
        if index and len(value) <= index[0]:
            return "–"
        if not index:
            return f"{value:.1f} [{low:.1f}, {high:.1f}]".replace("-", "−")
        return format_estimate(Estimate(float(value[index]), float(low[index]), float(high[index]), 0))

    first = "minus first calibrated row"
    columns = ["log p(action)", first, "log p(state)", *(f"error, h = {h}" for h in shown)]
    columns += [f"error of the mean plan, h = {h}" for h in shown]
    columns += [
        f"{100 * level:.0f} % of {what}" for what in ("actions", "observations") for level in COVERAGE_LEVELS
    ]
    print("| row | " + " | ".join(columns) + " |\n|" + " --- |" * (len(columns) + 1))
    rows = dict(results["rows"])
    repeated = [row["error_repeat"] for row in rows.values() if "error_repeat" in row]
    if repeated:
        longest = max(repeated, key=lambda error: len(error["value"]))
        rows["repeat the last action"] = {"gaussian": False, "error": longest}
    for name, row in rows.items():
        cells = [
            cell(row, each) for each in ("log_prob_action", "log_prob_action_difference", "log_prob_state")
        ]
        cells += [cell(row, name, h - 1) for name in ("error", "error_mean_plan") for h in shown]
        for what in ("action", "observation"):
            cells += [cell(row, f"coverage_{what}", i) for i in range(len(COVERAGE_LEVELS))]
        print(f"| {name}{' (Gaussian)' if row['gaussian'] else ''} | " + " | ".join(cells) + " |")


def score_all(args: argparse.Namespace) -> None:
    """Train and score all methods; write the results after each of them."""
    args.device = pick_device(args.device)
    torch.set_num_threads(1)
    split = Split(args.demos, args.seed)
    statistics = measure_statistics(split.training)
    configs = {name: choose_config(name, statistics, args.steps) for name in args.methods}
    simple = resolve_first_action(split.training, get_task("none").preset("fast"))
    figures: dict[str, tuple[Figures, bool]] = {
        "random walk": (SimpleModel(split, simple, linear=False).score(split.test), True),
        "linear model": (SimpleModel(split, simple, linear=True).score(split.test), True),
    }
    for method, config in configs.items():
        run = train_method(method, config, split, args)
        figures[method] = score_policy(run, split, args)
        if figures[method][0]["coverage_action"] is not None:
            figures[method + CALIBRATED] = score_policy(copy_calibrated(run, split, args), split, args)
        reference = next((each for name, (each, _) in figures.items() if name.endswith(CALIBRATED)), {})
        results = {
            "demos": args.demos.name,
            "seed": args.seed,
            "steps": args.steps,
            "machine": f"{device_name(args.device)}, torch {torch.__version__}",
            "scored_episodes": list(split.held_out),
            "rows": {name: to_dict(*each, reference) for name, each in figures.items()},
        }
        replace_file(args.out / "results.json", json.dumps(results, indent=1, allow_nan=False).encode())
    print_table(results)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=Path, help="store of demonstrations")
    parser.add_argument("--out", type=Path, default=Path("out/g1"), help="folder of runs and results.json")
    parser.add_argument("--table", type=Path, help="only print the table of this results.json")
    every = sorted(METHODS.names(), key="neural_sde".__ne__)
    parser.add_argument(
        "--methods", nargs="+", default=every, help="default: all; settings are changed after a colon"
    )
    parser.add_argument(
        "--steps",
        type=parse_count_or_zero,
        default=0,
        help="training steps of every method; 0 for those of auto",
    )
    parser.add_argument("--samples", type=parse_count, default=39, help="plans from each frame")
    parser.add_argument(
        "--seed", type=parse_count_or_zero, default=0, help="of the split and of the trainings"
    )
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if args.table:
        print_table(read_results(parser, args.table, "gaussian"))
        return
    if args.demos is None:
        parser.error("give --demos, or --table")
    try:
        score_all(args)
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
