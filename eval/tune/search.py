"""A deterministic search for the best settings, first of sampling, on one run, then of training.

Optuna draws each candidate from the scores of those before it, except the last few, which are being tried.
All are scored once, the best third again with the next training seed and on other initial states, and so on:
successive halving. A search that is repeated asks for the same trials, whatever the number of processes, so
it can be resumed from the file of finished trials. Processes without a trial train runs that will be needed.
"""

import dataclasses
import json
import logging
import math
import typing
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from tqdm import tqdm

from nsde_policy.errors import CheckpointError, NsdePolicyError, import_optional
from nsde_policy.eval.ray_pool import RayPool
from nsde_policy.eval.statistics import Estimate
from nsde_policy.eval.tune.trial import Trial, TuneSetup, Values, apply_values, run_trial, train_trial
from nsde_policy.eval.workers import WorkerPool
from nsde_policy.files import read_json, replace_file
from nsde_policy.run_config import RunConfig

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
TrialScore = Estimate | str
"""Score of a trial, or why it has none."""
Space = dict[str, tuple[float, "BaseDistribution"]]
"""Present values and possible ones of settings, by their paths."""
RUNGS, KEPT = 3, 3
"""Number of times that the best candidates are scored, and one of how many goes on to the next time."""
AT_ONCE = 8
"""Most candidates that are tried at the same time."""
SAMPLING_TRIALS = 24
"""Candidates of the settings that need no training."""
SAMPLING_SEEDS, TRAINING_SEEDS, FRESH_SEEDS = 200_000, 225_000, 250_000
"""First seeds of the initial states that score sampling settings, training settings and the final runs.
Sampling is tuned on a run with the given settings, so that run would score too high on the same states."""
FACTORS, LONGEST_CHUNK = (0.5, 1, 2), 16
"""Factors on width and steps; chunks up to this one are tried, or up to twice the given one."""
TRIALS_FILE, PRESET_FILE, BEST_RUN, DEFAULT_RUN = "trials.json", "preset.json", "best", "default"


def make_sampling_space(config: RunConfig) -> Space:
    """Return what needs no training: the chunk, and the settings of sampling that are not whole numbers.

    Whole numbers, such as solver steps, choose the cost of a plan, which a score does not show.
    """
    distributions = import_optional("optuna.distributions", "tune")
    space = {}
    for name, hint in typing.get_type_hints(type(config.model.sampling), include_extras=True).items():
        base, *bounds = typing.get_args(hint) or (hint,)
        if base is float:
            now = getattr(config.model.sampling, name)
            high = min([max(2.0, 2 * now), *(each.le for each in bounds if each.le is not None)])
            space[f"model.sampling.{name}"] = now, distributions.FloatDistribution(0.0, high)
    chunk = max(LONGEST_CHUNK, 2 * config.chunk)
    longest = min(chunk, config.model.longest_chunk or chunk)
    return {**space, "chunk": (config.chunk, distributions.IntDistribution(1, longest, log=True))}


def make_training_space(config: RunConfig) -> Space:
    """Return blur, history, width and steps, if the method has them; nothing if it is not trained."""
    distributions = import_optional("optuna.distributions", "tune")
    model, steps = config.model, config.train.steps
    space: Space = {
        "model.history": (model.history, distributions.IntDistribution(1, max(3, model.history + 1)))
    }
    if blur := getattr(model, "noise", 0.0):
        space["model.noise"] = blur, distributions.FloatDistribution(blur / 4, 4 * blur, log=True)
    network = getattr(model, "network", None)
    sizes = {"train.steps": steps} | ({"model.network.width": network.width} if network else {})
    for path, size in sizes.items():
        choices = [max(1, round(size * factor)) for factor in FACTORS]
        space[path] = size, distributions.CategoricalDistribution(choices)
    return space if steps > 1 else {}


def list_rungs(count: int) -> list[int]:
    """Return how many of `count` candidates each rung scores, the given settings among them."""
    return [count, *(min(count, 1 + max(1, count // KEPT**rung)) for rung in range(1, RUNGS))]


def format_values(values: Values) -> str:
    """Return settings in one line: "noise 0.7, history 2"."""
    return ", ".join(f"{path.rpartition('.')[2]} {value:.4g}" for path, value in values.items())


class Search:
    """A search in a folder: `trials` candidates of the settings of training, `episodes` for each score."""

    def __init__(self, setup: TuneSetup, out: Path, *, trials: int, episodes: int, seed: int) -> None:
        self._setup, self._out = setup, out
        self._trials, self._episodes, self._seed = trials, episodes, seed
        about: dict[str, Any] = {"trials": trials, "episodes": episodes, "seed": seed}
        about |= {
            "at_once": AT_ONCE,
            "first_seeds": [SAMPLING_SEEDS, TRAINING_SEEDS, FRESH_SEEDS],
            "optuna": version("optuna"),
        }
        about |= dataclasses.asdict(setup) | {"demos": str(setup.demos), "config": setup.config.to_dict()}
        self._about = json.loads(json.dumps(about))  # as it is read from the file
        self._found: dict[str, TrialScore] = {}
        self._jobs: dict[Future[TrialScore], str] = {}
        self._ahead: dict[Path, Future[None]] = {}
        self._finalists: dict[Path, Values] = {}
        self._values: dict[str, Any] = {}
        self._sampling = {} if setup.offline else make_sampling_space(setup.config)
        self._training = make_training_space(setup.config)

    def count(self) -> tuple[int, int]:
        """Return the number of trainings and of episodes that the search takes."""
        trained = sum(list_rungs(self._trials)) if self._training else 1
        scored = trained + sum(list_rungs(SAMPLING_TRIALS)) + 2 * RUNGS
        return trained + 2, 0 if self._setup.offline else scored * self._episodes

    def run(self, pool: WorkerPool | RayPool, *, resume: bool) -> tuple[Values, TrialScore, TrialScore]:
        """Search, write the preset and train a run with it; raise `CheckpointError` for another search.

        Return the best settings, and the scores of a run with them and of one with the given settings, whose
        training seed and initial states have chosen nothing.
        """
        self._pool = pool
        self._read_trials(resume=resume)
        self._write_trials()
        self._train_ahead(self._list_first()[: pool.capacity * 3 // 2])
        values: Values = {}
        if self._sampling:
            values = self._search("sampling", self._sampling, SAMPLING_TRIALS, values)
        if self._training:
            values = {**values, **self._search("training", self._training, self._trials, values)}
        config = apply_values(self._setup.config, values)
        replace_file(self._out / PRESET_FILE, config.to_json())
        runs: dict[str, Values] = {BEST_RUN: values, DEFAULT_RUN: {}}
        final = {key: self._make_final(key, each) for key, each in runs.items()}
        with tqdm(desc="final runs", total=2, unit="run", disable=None) as bar:
            for run in [run for run, each in self._finalists.items() if each == values]:
                self._wait_ahead(run, bar)
                if run.exists():
                    run.rename(final[BEST_RUN].run)
            self._submit(final, bar)
            for key in final:
                self._wait_for(key, bar)
        self._refuse_failures(*final)
        return values, self._found[BEST_RUN], self._found[DEFAULT_RUN]

    def _make_final(self, name: str, values: Values) -> Trial:
        """Return the trial of a final run; nothing was chosen with its training seed and initial states."""
        seeds = range(FRESH_SEEDS, FRESH_SEEDS + RUNGS * self._episodes)
        return Trial(self._out / name, values, {}, self._seed + RUNGS, seeds)

    def _list_first(self) -> list[Trial]:
        """List trainings that are known beforehand: random candidates, and the given settings."""
        if not self._training:
            return []
        study, distributions = self._start_study(self._training)
        drawn = [study.ask(distributions).params for _ in range(min(self._trials, AT_ONCE + 1))]
        places = [*((i, 0) for i in range(len(drawn))), *((0, rung) for rung in range(1, RUNGS))]
        known = [self._make_trial(i, rung, drawn[i], {}) for i, rung in places]
        return [*known, self._make_final(DEFAULT_RUN, {})]

    def _make_trial(self, i: int, rung: int, trained: Values, sampled: Values) -> Trial:
        """Return the trial of a candidate's training settings in a rung."""
        run, seeds = f"trial-{i:02d}-{rung}", self._list_seeds(TRAINING_SEEDS, rung)
        return Trial(self._out / run, trained, sampled, self._seed + rung, seeds)

    def _list_seeds(self, first: int, rung: int) -> range:
        """Return the seeds of the initial states in a rung."""
        return range(first + rung * self._episodes, first + (rung + 1) * self._episodes)

    def _train_ahead(self, trials: Sequence[Trial]) -> None:
        """Start to train runs that do not exist yet."""
        for trial in trials:
            if not trial.run.exists():
                self._ahead[trial.run] = self._pool.submit(train_trial, self._setup, trial)

    def _wait_ahead(self, run: Path, bar: "tqdm[Any]") -> None:
        """Wait for a run that is trained ahead."""
        if (job := self._ahead.pop(run, None)) is not None:
            while not job.done():
                self._collect([job, *self._jobs], bar)
            self._read_result(job)

    def _start_finals(self, candidates: dict[str, Values]) -> None:
        """Train final runs of the last candidates, of which one is used, if processes have nothing to do."""
        if self._pool.capacity >= 2 + 2 * len(candidates) and not (self._out / BEST_RUN).exists():
            different = {format_values(values): (name, values) for name, values in candidates.items()}
            trials = [self._make_final(*each) for each in different.values()]
            self._finalists = {trial.run: trial.trained for trial in trials}
            self._train_ahead(trials)

    def _start_study(self, space: Space) -> tuple[Any, dict[str, "BaseDistribution"]]:
        """Return a study of Optuna whose first candidate are the present values, and what it may draw."""
        optuna = import_optional("optuna", "tune")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=self._seed, n_startup_trials=AT_ONCE)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.enqueue_trial({path: now for path, (now, _) in space.items()})
        return study, {path: distribution for path, (_, distribution) in space.items()}

    def _search(self, phase: str, space: Space, count: int, fixed: Values) -> Values:
        """Return the best of `count` candidates by successive halving, with `fixed` settings of sampling."""
        failed_state = import_optional("optuna.trial", "tune").TrialState.FAIL
        study, distributions = self._start_study(space)
        candidates: list[Values] = []
        scores: list[list[float]] = [[] for _ in range(count)]
        asked: list[Any] = []
        bar = tqdm(desc=phase, total=sum(list_rungs(count)), unit="trial", disable=None)

        def name(i: int, rung: int) -> str:
            return f"{phase}-{i:02d}-{rung}"

        def submit(chosen: Sequence[int], rung: int) -> None:
            trials = {}
            for i in chosen:
                if phase == "sampling":  # all share the first run
                    shared = self._make_trial(0, 0, {}, candidates[i])
                    trial = dataclasses.replace(shared, seeds=self._list_seeds(SAMPLING_SEEDS, rung))
                else:
                    trial = self._make_trial(i, rung, candidates[i], fixed)
                trials[name(i, rung)] = trial
            self._submit(trials, bar)

        def score(chosen: Sequence[int], rung: int) -> None:
            for i in chosen:
                scores[i].append(self._wait_for(name(i, rung), bar))

        def tell(i: int) -> None:
            """Tell Optuna the next score: in order, so that it knows the same on fast and slow processes."""
            score([i], 0)
            if i == 0:
                self._refuse_failures(name(0, 0))
            failed = failed_state if scores[i] == [-math.inf] else None
            study.tell(asked[i], None if failed else scores[i][0], state=failed)

        for i in range(count):
            if i == 1 or i > AT_ONCE:  # the given settings train what others share, and must not fail
                tell(max(0, i - AT_ONCE))
            asked.append(study.ask(distributions))
            candidates.append(asked[i].params)
            submit([i], 0)
        for i in range(sum(map(bool, scores)), count):
            tell(i)
        kept = list(range(count))
        for rung, size in enumerate(list_rungs(count)[1:], 1):
            others = sorted(kept[1:], key=lambda i: -fmean(scores[i]))
            kept = [0, *others[: size - 1]]  # the given settings stay in the race
            submit(kept, rung)
            if phase == "training" and rung == RUNGS - 1:
                self._start_finals({f"final-{i:02d}": {**fixed, **candidates[i]} for i in kept[1:]})
            score(kept, rung)
        bar.close()
        return candidates[max(kept, key=lambda i: fmean(scores[i]))]

    def _submit(self, trials: dict[str, Trial], bar: "tqdm[Any]") -> None:
        """Start trials that are not in the file."""
        self._values |= {key: {**trial.sampled, **trial.trained} for key, trial in trials.items()}
        missing = [key for key in trials if key not in self._found]
        bar.update(len(trials) - len(missing))
        for key in missing:
            self._wait_ahead(trials[key].run, bar)
        self._jobs |= {self._pool.submit(run_trial, self._setup, trials[key]): key for key in missing}

    def _wait_for(self, key: str, bar: "tqdm[Any]") -> float:
        """Return the score of a trial."""
        while key not in self._found:
            self._collect([*self._jobs], bar)
        return rank_score(self._found[key])

    def _collect(self, jobs: Sequence[Future[Any]], bar: "tqdm[Any]") -> None:
        """Wait until one of some jobs ends; write and show the scores among them."""
        for future in wait(jobs, return_when=FIRST_COMPLETED).done & self._jobs.keys():
            other = self._jobs.pop(future)
            self._found[other] = self._read_result(future)
            self._write_trials()
            bar.update()
            best = max(rank_score(each) for name, each in self._found.items() if name[:8] == other[:8])
            settings = format_values(self._values[other]) or "as given"
            logger.info("%s | %s | %s | best %.4g", other, settings, self._found[other], best)

    @staticmethod
    def _read_result(future: Future[Result]) -> Result:
        try:
            return future.result()
        except BrokenExecutor as error:
            raise NsdePolicyError(
                "a process of the search has died, perhaps for lack of memory: continue with --resume and "
                "fewer --workers"
            ) from error

    def _refuse_failures(self, *keys: str) -> None:
        """Raise the error of trials that all failed."""
        found = [self._found[key] for key in keys]
        if all(isinstance(each, str) for each in found):
            raise NsdePolicyError(str(found[0]))

    def _read_trials(self, *, resume: bool) -> None:
        """Read the finished trials; raise `CheckpointError` if the folder holds another search."""
        path = self._out / TRIALS_FILE
        if not resume and any(self._out.iterdir()):
            raise CheckpointError(f"{self._out} is not empty; continue with --resume or choose another --out")
        if not path.exists():
            return
        saved = read_json(path, error=CheckpointError)
        try:
            self._values = msgspec.convert(saved.get("settings"), dict[str, dict[str, int | float]])
            self._found = msgspec.convert(saved.get("scores"), dict[str, TrialScore])
        except msgspec.ValidationError:
            saved = {}
        if saved.get("search") != self._about:
            raise CheckpointError(
                f"{path} is of a search with other flags or of another version, or damaged; use another --out"
            )

    def _write_trials(self) -> None:
        """Replace the file of finished trials; failed ones are tried again by a search that is resumed."""
        scores = {key: vars(each) for key, each in self._found.items() if isinstance(each, Estimate)}
        whole = {"search": self._about, "settings": self._values, "scores": scores}
        replace_file(self._out / TRIALS_FILE, json.dumps(whole, indent=1, allow_nan=False, sort_keys=True))


def rank_score(score: TrialScore) -> float:
    """Return the value of a score; minus infinity for a trial that failed."""
    return score.value if isinstance(score, Estimate) else -math.inf
