"""A search for the best settings, with Optuna; processes on any number of machines share one study.

A trial trains some settings and scores the run, up to three times, with other training seeds and initial
states. Optuna proposes the settings from the scores of earlier trials, and ends trials whose mean score is
not among the best third so far: successive halving.
"""

import io
import json
import logging
import math
import os
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, wait
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import torch
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from tqdm import tqdm

from nsde_policy.assets import find_demos
from nsde_policy.errors import (
    CheckpointError,
    ConfigError,
    NsdePolicyError,
    is_out_of_memory,
    summarize_error,
)
from nsde_policy.files import find_difference, lock_directory, replace_file
from nsde_policy.interface.calibration import CALIBRATION_FILE
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.presets import PRESET_FILE
from nsde_policy.training.train import pick_device, train_run

from ..rollouts.executors import ProcessPool
from ..rollouts.runner import RolloutConfig
from ..rollouts.scores import score_rollouts
from ..score.scorer import score
from ..statistics import Estimate
from .space import (
    Space,
    apply_values,
    format_values,
    list_first_trials,
    make_sampling_space,
    make_training_space,
)

logger = logging.getLogger(__name__)

STUDY_FILE = "study.log"
ROUNDS, REDUCTION = 3, 3
"""Most trainings of a trial; one of how many trials goes on to the next one."""
TUNING_SEED, FRESH_SEED = 200_000, 250_000
"""First seeds of the initial states that score trials, and of those that compare the best one at the end."""
IS_DEFAULT = "is_default"
"""Attribute of a trial: whether it has the starting settings."""


@dataclass(frozen=True)
class Search:
    """Settings that all processes of a search share."""

    config: RunConfig
    """Settings that the search starts from."""
    options: TrainOptions
    demos: Path | None
    """Store of the demonstrations; None for the task's own in the package."""
    task: str
    env: str | None
    """Environment that a flag names; None for the one of the task."""
    env_kwargs: Mapping[str, object]
    out: Path
    storage: str
    """File or URL of the study."""
    trials: int
    episodes: int
    """Episodes that score a run; 0 to score it on held-out episodes, if the task has no environment."""
    seed: int

    def run(self, workers: int) -> tuple[FrozenTrial, Estimate, Estimate] | None:
        """Join the study with `workers` processes until it has enough trials, and compare the best trial.

        Return it, and the scores of new runs with its settings and with the starting ones, whose training
        seed and initial states have chosen nothing; None if another process compares.
        """
        is_new = self.join()
        sampler_seed = self.seed if is_new and workers == 1 else None  # equal seeds would repeat candidates
        study = self.open_study()
        reported = {trial.number for trial in list_finished(study)}
        bar = tqdm(desc="search", total=self.trials, initial=len(reported), unit="trial", disable=None)
        try:
            with ProcessPool(workers) as pool, bar:
                jobs = {pool.submit(self.run_trials, sampler_seed) for _ in range(workers)}
                while jobs:
                    done, jobs = wait(jobs, timeout=1)
                    for trial in list_finished(study):  # also on other machines
                        if trial.number not in reported:
                            reported.add(trial.number)
                            logger.info("%s", describe_trial(trial))
                            bar.update()
                    for job in done:
                        job.result()
                if not study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
                    raise ConfigError(
                        "no trial has succeeded: continue with the same command and more --trials"
                    )
                return self._compare(study.best_trial, pool)
        except BrokenExecutor as error:
            raise NsdePolicyError(
                "a process of the search has died, perhaps for lack of memory: continue with the same "
                "command and fewer --workers"
            ) from error

    def join(self) -> bool:
        """Start a study, or check that it is of this search; return whether it is new."""
        space = self._make_space()
        if not space:
            raise ConfigError(f"{self.config.method} has no settings to search: use train")
        is_missing = "://" not in self.storage and not Path(self.storage).exists()
        if is_missing and self.out.exists() and any(self.out.iterdir()):
            raise CheckpointError(f"{self.out} is not empty and holds no search: choose another --out")
        self.out.mkdir(parents=True, exist_ok=True)
        study = self.open_study()
        description, saved = self._describe(), study.user_attrs.get("search")
        if saved is None:
            study.set_user_attr("search", description)
            for i, values in enumerate(list_first_trials(space)):
                study.enqueue_trial(dict(values), user_attrs={IS_DEFAULT: i == 0})
        elif saved != description:
            difference = find_difference(saved, description) or "it is of another version"
            raise CheckpointError(
                f"the study {study.study_name!r} is of another search ({difference}): use the same flags, or "
                "another --out"
            )
        return saved is None

    def open_study(self, sampler_seed: int | None = None) -> optuna.Study:
        """Open the study in its storage; it is created if it does not exist."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        is_file = "://" not in self.storage
        storage: Any = self.storage
        try:
            if is_file:
                lock = JournalFileOpenLock(storage)  # works on Windows too
                storage = JournalStorage(JournalFileBackend(storage, lock))
            return optuna.create_study(
                storage=storage,
                study_name=self.out.name,
                direction="maximize",
                sampler=optuna.samplers.TPESampler(seed=sampler_seed, constant_liar=True),
                pruner=optuna.pruners.SuccessiveHalvingPruner(1, REDUCTION),
                load_if_exists=True,
            )
        except Exception as error:  # of many types, by the storage
            name = self.storage if is_file else f"{self.storage.partition('://')[0]}://…"
            reason = summarize_error(error).replace(self.storage, name)  # without the password of a URL
            raise ConfigError(
                f"{name} cannot store a study: {reason}; expected --storage with a file or a URL such as "
                "sqlite:///study.db"
            ) from error

    def run_trials(self, sampler_seed: int | None = None) -> None:
        """Try settings until the study has enough trials: what each process of a search does.

        Trials of processes that were killed do not count.
        """
        study = self.open_study(sampler_seed)
        ranges = {path: values for path, (_, values) in self._make_space().items()}
        while len(list_finished(study)) < self.trials:
            trial = study.ask(ranges)
            try:
                study.tell(trial, self._score_trial(trial))
            except optuna.TrialPruned:
                study.tell(trial, state=TrialState.PRUNED)

    def trial_folder(self, trial: Trial | FrozenTrial) -> Path:
        """Return the folder of a trial's runs and preset."""
        return self.out / f"trial-{trial.number:02d}"

    def score_run(self, path: Path, config: RunConfig, seed: int, states: range) -> Estimate:
        """Train a run, if that is not done yet, and score it; higher scores are better.

        Return success × entropy for tasks with modes, success if the environment reports it, or the task's
        score, in episodes from the initial `states`; without an environment, minus the error on held-out
        episodes.
        """
        torch.set_num_threads(1)  # processes share the cores
        run, device = RunDirectory(path), pick_device(self.options.device)
        with redirect_stderr(io.StringIO()):  # without progress bars
            if not (path / CALIBRATION_FILE).exists() or run.describe_unfinished() is not None:
                task: dict[str, Any] = {"task": self.task, "env_kwargs": self.env_kwargs}
                train_run(self.demos, config, path, **task, options=replace(self.options, seed=seed))
            if not self.episodes:
                policy = Policy.from_pretrained(path).to(device)
                column = score(policy, self.demos or find_demos(self.task)).column("error", config.chunk)
                assert column is not None  # every method has errors
                error = column.at()
                low, high = (error.value if math.isnan(x) else x for x in (error.low, error.high))  # for JSON
                return replace(error, value=-error.value, low=-high, high=-low)
            kwargs = {} if self.env is None else self.env_kwargs
            rollouts = RolloutConfig(self.env, kwargs, len(states), states.start)
            scores = score_rollouts(path, rollouts, workers=1, device=device)
            return scores.product or scores.success or scores.score

    def _make_space(self) -> Space:
        """Return what the search may change; the error on recorded episodes does not judge sampling."""
        sampling = make_sampling_space(self.config) if self.episodes else {}
        return {**sampling, **make_training_space(self.config)}

    def _describe(self) -> dict[str, Any]:
        """Return what the processes of a search agree on, as it is read from a study."""
        description = {
            "demos": self.demos and self.demos.name,  # its folder may differ between machines
            "task": self.task,
            "env": self.env,
            "env_kwargs": self.env_kwargs,
            "episodes": self.episodes,
            "seed": self.seed,
            "validation": self.options.validation,
            "settings": self.config.to_dict(),
        }
        whole: dict[str, Any] = json.loads(json.dumps(description))
        return whole

    def _score_trial(self, trial: Trial) -> float:
        """Return the mean score of a trial's runs; raise `TrialPruned` for settings that fail or fall behind.

        An error with the starting settings is raised, because it is hardly about the settings.
        """
        folder, scores = self.trial_folder(trial), list[float]()
        try:
            config = apply_values(self.config, trial.params)
            replace_file(folder / PRESET_FILE, config.to_json())
            for i in range(ROUNDS):
                seed, first = self.seed + i, TUNING_SEED + i * self.episodes
                trial.set_user_attr(f"seeds of training {i + 1}", {"training": seed, "first episode": first})
                states = range(first, first + self.episodes)
                scores.append(self.score_run(folder / f"seed-{seed}", config, seed, states).value)
                trial.report(fmean(scores), REDUCTION**i)  # the steps at which halving decides
                if i + 1 < ROUNDS and trial.should_prune():
                    raise optuna.TrialPruned
        except Exception as error:
            is_about_settings = isinstance(error, NsdePolicyError) or is_out_of_memory(error)
            if trial.user_attrs.get(IS_DEFAULT) or not is_about_settings:
                raise
            trial.set_user_attr("error", summarize_error(error))
            raise optuna.TrialPruned from error
        return fmean(scores)

    def _compare(self, best: FrozenTrial, pool: ProcessPool) -> tuple[FrozenTrial, Estimate, Estimate] | None:
        """Write the preset of the best trial, and compare it with the starting settings in new runs."""
        try:
            lock = lock_directory(self.out, error=CheckpointError)
        except CheckpointError:  # another process compares
            return None
        try:
            config = apply_values(self.config, best.params)
            replace_file(self.out / PRESET_FILE, config.to_json())
            logger.info("trial %d is best: new runs compare it with the starting settings", best.number)
            states = range(FRESH_SEED, FRESH_SEED + ROUNDS * self.episodes)
            runs = {self.out / f"best-{best.number:02d}": config, self.out / "default": self.config}
            jobs = [
                pool.submit(self.score_run, run, settings, self.seed + ROUNDS, states)
                for run, settings in runs.items()
            ]
            tuned, default = (job.result() for job in jobs)
            return best, tuned, default
        finally:
            os.close(lock)


def list_finished(study: optuna.Study) -> list[FrozenTrial]:
    """List the trials that have a score, or failed."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


def describe_trial(trial: FrozenTrial) -> str:
    """Return number, settings and score of a trial in one line."""
    runs = len(trial.intermediate_values)
    value = math.nan if trial.value is None else trial.value
    score = trial.user_attrs.get("error") or f"{value:.4g} in {runs} training{'s' * (runs > 1)}"
    return f"trial {trial.number} | {format_values(trial.params)} | {score}"
