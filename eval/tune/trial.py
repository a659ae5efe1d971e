"""One trial of a search: train some settings with one seed, if that is not done yet, and score the run."""

import io
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nsde_policy.assets import find_demos
from nsde_policy.errors import NsdePolicyError, is_out_of_memory, summarize_error
from nsde_policy.eval.evaluate import MAX_BATCH, score_episodes
from nsde_policy.eval.offline.score import evaluate
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.statistics import Estimate
from nsde_policy.inference.policy import Policy
from nsde_policy.planner.calibration import CALIBRATION_FILE
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task_of_run
from nsde_policy.training.train import TrainOptions, train_run

Values = Mapping[str, float]
"""Settings by their path in a `RunConfig`, such as "model.noise"."""


@dataclass(frozen=True)
class TuneSetup:
    """What all trials of a search share."""

    config: RunConfig
    """Settings that the search starts from."""
    options: TrainOptions
    demos: Path | None
    """Store of the demonstrations; None for those of the task in the package."""
    task: str
    env: str | None
    """Environment that was given by hand; None for the one of the task."""
    env_kwargs: Mapping[str, object]
    offline: bool
    """Whether runs are scored on held-out episodes, for tasks without an environment."""


@dataclass(frozen=True)
class Trial:
    """Settings that differ from those of a `TuneSetup`, and seeds."""

    run: Path
    """Run directory, which trials with the same training share."""
    trained: Values
    sampled: Values
    """Settings of sampling, and the chunk, that the run is rolled out with."""
    seed: int
    """Seed of the training."""
    seeds: range
    """Seeds of the episodes; held-out episodes have none."""


def train_trial(setup: TuneSetup, trial: Trial) -> None:
    """Train in a process of a pool, ahead of the score; an error comes again when the run is scored."""
    with _quietly(), suppress(Exception):
        _train(setup, trial)


def run_trial(setup: TuneSetup, trial: Trial) -> Estimate | str:
    """Train and score in a process of a pool, without progress bars; higher scores are better.

    Settings that cannot be trained or rolled out get the reason instead of a score.
    """
    with _quietly():
        try:
            _train(setup, trial)
            found = _score_recorded(setup, trial) if setup.offline else _roll_out(setup, trial)
        except NsdePolicyError as error:
            return str(error)
        except Exception as error:
            if is_out_of_memory(error):
                return f"out of memory: {summarize_error(error)}"
            raise
    low, high = (found.value if math.isnan(bound) else bound for bound in (found.low, found.high))
    return replace(found, low=low, high=high)


@contextmanager
def _quietly() -> Iterator[None]:
    """Use one thread, because the score must not depend on the number of cores, and no progress bars."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with redirect_stderr(io.StringIO()):
        yield


def _train(setup: TuneSetup, trial: Trial) -> None:
    """Train the run of a trial, or resume its training; a finished run is left alone."""
    run = RunDirectory(trial.run)
    if (run.path / CALIBRATION_FILE).exists() and run.describe_unfinished() is None:
        return
    config, kwargs = apply_values(setup.config, trial.trained), setup.env_kwargs
    given = {"task": setup.task, "env_kwargs": kwargs, "seed": trial.seed, "options": setup.options}
    train_run(setup.demos, config, run.path, **given)  # type: ignore[arg-type]


def _roll_out(setup: TuneSetup, trial: Trial) -> Estimate:
    """Return success × entropy of tasks with modes, success if the environment reports it, or the score."""
    record, device = RunDirectory(trial.run).read_record(), setup.options.device
    task, config = get_task_of_run(record, setup.env), apply_values(record.config, trial.sampled)
    env_kwargs = {} if setup.env is None else setup.env_kwargs
    policy = Policy.from_pretrained(trial.run)
    policy.model.config = config.model  # with plan selection, sampling follows from it and from the rule
    rollout = RolloutConfig(task, env_kwargs, config.chunk, policy.sampling)
    batch = 1 if device == "cpu" else min(len(trial.seeds), MAX_BATCH)
    pool = RolloutPool(trial.run, rollout, device=device, batch=batch)
    scores = score_episodes(list(pool.evaluate(trial.seeds)), task)
    return scores.product or scores.success or scores.score


def _score_recorded(setup: TuneSetup, trial: Trial) -> Estimate:
    """Return minus the error of a sampled plan on held-out episodes."""
    policy = Policy.from_pretrained(trial.run).to(setup.options.device)
    column = evaluate(policy, setup.demos or find_demos(setup.task)).column("error", setup.config.chunk)
    assert column is not None  # every method has errors
    error = column.at()
    return replace(error, value=-error.value, low=-error.high, high=-error.low)


def apply_values(config: Any, values: Values) -> Any:
    """Return settings with those of some paths changed; raise `ConfigError` if they do not fit together."""
    for path, value in values.items():
        name, _, rest = path.partition(".")
        config = replace(
            config, **{name: apply_values(getattr(config, name), {rest: value}) if rest else value}
        )
    return config
