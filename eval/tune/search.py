"""A deterministic search for the best settings, first of sampling, on one run, then of training.

Optuna draws each candidate from the scores of those before it, except the last few, which are being tried.
All are scored once, the best third again with the next training seed and on other initial states, and so on:
successive halving. A search that is repeated asks for the same trials, whatever the number of processes, so
it can be resumed from the file of finished trials. Processes that would wait begin trials that are likely to
be asked for: the next ones of the candidates in the lead.
"""

import dataclasses
import itertools
import json
import logging
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import msgspec
from tqdm import tqdm

from nsde_policy.errors import CheckpointError, NsdePolicyError, import_optional
from nsde_policy.eval.rollouts.executors import ProcessPool, RayPool
from nsde_policy.eval.statistics import Estimate
from nsde_policy.eval.tune.space import (
    AT_ONCE,
    RANDOM_TRIALS,
    Space,
    make_sampling_space,
    make_training_space,
    start_study,
)
from nsde_policy.eval.tune.trial import Trial, TuneSetup, Values, apply_values, run_trial, train_trial
from nsde_policy.files import find_difference, read_json, replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.training.presets import PRESET_FILE

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
TrialScore = Estimate | str
"""Score of a trial, or why it has none."""
RUNGS, KEPT = 3, 3
"""Number of times that the best candidates are scored, and one of how many goes on to the next time."""
SAMPLING_TRIALS = 24
"""Candidates of the settings that need no training."""
SAMPLING_SEEDS, TRAINING_SEEDS, FRESH_SEEDS = 200_000, 225_000, 250_000
"""First seeds of the initial states that score sampling settings, training settings and the final runs.
Sampling is tuned on a run with the given settings, so that run would score too high on the same states."""
TRIALS_FILE, BEST_RUN, DEFAULT_RUN = "trials.json", "best", "default"


def list_rungs(count: int) -> list[int]:
    """Return how many of `count` candidates each rung scores, the given settings among them."""
    return [count, *(min(count, 1 + max(1, count // KEPT**rung)) for rung in range(1, RUNGS))]


def format_values(values: Values) -> str:
    """Return settings in one line: "noise 0.7, history 2"."""
    return ", ".join(f"{path.rpartition('.')[2]} {value:.4g}" for path, value in values.items())


@dataclasses.dataclass
class Race:
    """Candidates of a phase, "sampling" or "training"; the first of them is the given settings."""

    phase: str
    sizes: Sequence[int]
    """Number of candidates in each rung."""
    fixed: Values
    """Settings of sampling that all share."""
    kept: list[int]
    """Candidates of the present rung; in the first, not all of them have been drawn."""
    rung: int = 0
    candidates: list[Values] = dataclasses.field(default_factory=list)

    def name(self, i: int, rung: int) -> str:
        """Return the key of a trial."""
        return f"{self.phase}-{i:02d}-{rung}"


class Search:
    """A search in a folder: `trials` candidates of the settings of training, `episodes` for each score."""

    def __init__(self, setup: TuneSetup, out: Path, *, trials: int, episodes: int, seed: int) -> None:
        given = setup.config.replace_parts(selection={"horizon": setup.config.horizon})
        self._setup, self._out = dataclasses.replace(setup, config=given), out
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
        self.asked: list[Trial] = []
        """Trials that decide the search, in order; those in the file of finished ones among them."""
        self._jobs: dict[Future[TrialScore], str] = {}
        self._ahead: dict[Path, Future[None]] = {}
        self._early: dict[str, Future[TrialScore]] = {}
        self._race: Race | None = None
        self._values: dict[str, Any] = {}
        self._sampling = {} if setup.offline else make_sampling_space(setup.config)
        self._training = make_training_space(setup.config)

    def count(self) -> tuple[int, int]:
        """Return the number of trainings and of episodes that the search takes."""
        trained = sum(list_rungs(self._trials)) if self._training else 1
        scored = trained + sum(list_rungs(SAMPLING_TRIALS)) + 2 * RUNGS
        return trained + 2, 0 if self._setup.offline else scored * self._episodes

    def run(self, pool: ProcessPool | RayPool, *, resume: bool) -> tuple[Values, TrialScore, TrialScore]:
        """Search, write the preset and train a run with it; raise `CheckpointError` for another search.

        Return the best settings, and the scores of a run with them and of one with the given settings, whose
        training seed and initial states have chosen nothing.
        """
        self._pool = pool
        self._read_trials(resume=resume)
        self._write_trials()
        self._train_ahead(self._list_first()[: pool.capacity * 2])
        values: Values = {}
        winner = 0
        if self._sampling:
            _, values = self._search("sampling", self._sampling, SAMPLING_TRIALS, values)
        if self._training:
            winner, trained = self._search("training", self._training, self._trials, values)
            values = {**values, **trained}
        config = apply_values(self._setup.config, values)
        replace_file(self._out / PRESET_FILE, config.to_json())
        runs: dict[str, Values] = {BEST_RUN: values, DEFAULT_RUN: {}}
        final = {key: self._make_final(key, each) for key, each in runs.items()}
        self._check_final(final)
        with tqdm(desc="final runs", total=2, unit="run", disable=None) as bar:
            early = self._make_final(f"final-{winner:02d}", values).run
            if (job := self._early.pop(early.name, None)) is not None:
                self._wait_until_done(job, bar)
                self._early[BEST_RUN] = job
            if early.exists() and not final[BEST_RUN].run.exists():
                early.rename(final[BEST_RUN].run)
            self._submit(final, bar)
            for key in final:
                self._wait_for(key, bar)
        self._refuse_failures(*final)
        return values, self._found[BEST_RUN], self._found[DEFAULT_RUN]

    def _check_final(self, trials: dict[str, Trial]) -> None:
        """Raise `CheckpointError` if final runs that were scored before are damaged; train deleted ones."""
        for key in trials.keys() & self._found.keys():
            run = trials[key].run
            if not run.exists():
                del self._found[key]
                continue
            try:
                Policy.from_pretrained(run)
            except CheckpointError as error:
                raise CheckpointError(f"{error}: delete {run}, and --resume trains it again") from None

    def _make_final(self, name: str, values: Values) -> Trial:
        """Return the trial of a final run; nothing was chosen with its training seed and initial states."""
        seeds = range(FRESH_SEEDS, FRESH_SEEDS + RUNGS * self._episodes)
        return Trial(self._out / name, values, {}, self._seed + RUNGS, seeds)

    def _list_first(self) -> list[Trial]:
        """List trainings that are known beforehand: random candidates, and the given settings."""
        if not self._training:
            return []
        study, distributions = start_study(self._training, seed=self._seed)
        drawn = [study.ask(distributions).params for _ in range(min(self._trials, RANDOM_TRIALS))]
        places = [*((i, 0) for i in range(len(drawn))), *((0, rung) for rung in range(1, RUNGS))]
        known = [self._make_trial(i, rung, drawn[i], {}) for i, rung in places]
        return [*known, self._make_final(DEFAULT_RUN, {})]

    def _make_trials(self, race: Race, chosen: Sequence[int], rung: int) -> dict[str, Trial]:
        """Return trials of candidates in a rung; those of sampling share the run of the given settings."""
        if race.phase == "training":
            made = [self._make_trial(i, rung, race.candidates[i], race.fixed) for i in chosen]
        else:
            seeds = self._list_seeds(SAMPLING_SEEDS, rung)
            shared = [self._make_trial(0, 0, {}, race.candidates[i]) for i in chosen]
            made = [dataclasses.replace(trial, seeds=seeds) for trial in shared]
        return {race.name(i, rung): trial for i, trial in zip(chosen, made, strict=True)}

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
            self._wait_until_done(job, bar)
            self._read_result(job)

    def _wait_until_done(self, job: Future[Any], bar: "tqdm[Any]") -> None:
        while not job.done():
            self._collect([job, *self._jobs], bar)

    def _start_likely(self) -> None:
        """Begin trials that are likely to be asked for, if processes have nothing to do."""
        others: list[Future[Any]] = [*self._early.values(), *self._ahead.values()]
        busy = len(self._jobs) + sum(not job.done() for job in others)
        idle = max(0, self._pool.capacity - busy)
        training = {run for run, job in self._ahead.items() if not job.done()}
        known = {*self._found, *self._jobs.values(), *self._early}
        likely = ((key, t) for key, t in self._list_likely() if key not in known and t.run not in training)
        for key, trial in itertools.islice(likely, idle):
            self._early[key] = self._pool.submit(run_trial, self._setup, trial)

    def _list_likely(self) -> Iterator[tuple[str, Trial]]:
        """List trials of the next rungs, then final runs, of the candidates that lead at present."""
        race = self._race
        if race is None or race.name(0, 0) not in self._found:  # its run may be shared, and still in training
            return
        found = {i: self._list_scores(race, i) for i in race.kept[1:] if i < len(race.candidates)}
        best = sorted((i for i in found if found[i]), key=lambda i: -fmean(found[i]))
        scored = sum(len(each) > race.rung for each in found.values()) / max(1, len(race.kept) - 1)
        for rung, size in [*enumerate(race.sizes)][race.rung + 1 :]:
            yield from self._make_trials(race, [0, *best[: round(scored * size)]], rung).items()
        if race.phase == "training" and race.rung and not (self._out / BEST_RUN).exists():
            for i in [*best[: race.sizes[-1]], 0]:
                final = self._make_final(f"final-{i:02d}", {**race.fixed, **race.candidates[i]})
                yield final.run.name, final
        yield DEFAULT_RUN, self._make_final(DEFAULT_RUN, {})

    def _list_scores(self, race: Race, i: int) -> list[float]:
        """List the scores of a candidate so far."""
        keys = [race.name(i, rung) for rung in range(RUNGS)]
        return [rank_score(self._found[key]) for key in keys if key in self._found]

    @staticmethod
    def _count_needed(phase: str, i: int) -> int:
        """Return how many scores candidate `i` waits for."""
        if i >= RANDOM_TRIALS:
            return i + 1 - AT_ONCE
        return int(phase == "sampling" and i > 0)  # the first one trains the run on which all are sampled

    def _search(self, phase: str, space: Space, count: int, fixed: Values) -> tuple[int, Values]:
        """Return the best of `count` candidates by successive halving, with `fixed` settings of sampling."""
        failed_state = import_optional("optuna.trial", "tune").TrialState.FAIL
        study, distributions = start_study(space, seed=self._seed)
        race = self._race = Race(phase, list_rungs(count), fixed, [*range(count)])
        scores: list[list[float]] = [[] for _ in range(count)]
        asked: list[Any] = []
        bar = tqdm(desc=phase, total=sum(race.sizes), unit="trial", disable=None)

        def score(chosen: Sequence[int], rung: int) -> None:
            for i in chosen:
                scores[i].append(self._wait_for(race.name(i, rung), bar))

        def tell(i: int) -> None:
            """Tell Optuna the next score: in order, so that it knows the same on fast and slow processes."""
            score([i], 0)
            if i == 0:
                self._refuse_failures(race.name(0, 0))
            failed = failed_state if scores[i] == [-math.inf] else None
            study.tell(asked[i], None if failed else scores[i][0], state=failed)

        for i in range(count):
            for told in range(sum(map(bool, scores)), self._count_needed(phase, i)):
                tell(told)
            asked.append(study.ask(distributions))
            race.candidates.append(asked[i].params)
            self._submit(self._make_trials(race, [i], 0), bar)
        for i in range(sum(map(bool, scores)), count):
            tell(i)
        for rung, size in [*enumerate(race.sizes)][1:]:
            race.rung, others = rung, sorted(race.kept[1:], key=lambda i: -fmean(scores[i]))
            race.kept = [0, *others[: size - 1]]  # the given settings stay in the race
            self._submit(self._make_trials(race, race.kept, rung), bar)
            score(race.kept, rung)
        bar.close()
        self._race = None
        best = max(race.kept, key=lambda i: fmean(scores[i]))
        return best, race.candidates[best]

    def _submit(self, trials: dict[str, Trial], bar: "tqdm[Any]") -> None:
        """Start trials that are not in the file."""
        self._values |= {key: {**trial.sampled, **trial.trained} for key, trial in trials.items()}
        self.asked += trials.values()
        missing = [key for key in trials if key not in self._found]
        bar.update(len(trials) - len(missing))
        for key in missing:
            self._wait_ahead(trials[key].run, bar)
            job = self._early.pop(key, None) or self._pool.submit(run_trial, self._setup, trials[key])
            self._jobs[job] = key

    def _wait_for(self, key: str, bar: "tqdm[Any]") -> float:
        """Return the score of a trial."""
        while key not in self._found:
            self._collect([*self._jobs], bar)
        return rank_score(self._found[key])

    def _collect(self, jobs: Sequence[Future[Any]], bar: "tqdm[Any]") -> None:
        """Wait until one of some jobs ends; write and show the scores among them."""
        self._start_likely()
        others: list[Future[Any]] = [*self._early.values(), *self._ahead.values()]
        started = [*jobs, *(job for job in others if not job.done())]
        for future in wait(started, return_when=FIRST_COMPLETED).done & self._jobs.keys():
            other = self._jobs.pop(future)
            self._found[other] = self._read_result(future)
            self._write_trials()
            bar.update()
            phase, rung = other[:8], other[-1]
            rivals = (key for key in self._found if key.startswith(phase) and key.endswith(rung))
            best = max(rank_score(self._found[key]) for key in rivals)
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
        if not any(self._out.iterdir()):
            if resume:
                logger.info("%s holds no search to resume: it starts from the beginning", self._out)
            return
        if not resume:
            raise CheckpointError(f"{self._out} is not empty; continue with --resume or choose another --out")
        if not path.exists():
            raise CheckpointError(f"{self._out} holds no search, it has no {TRIALS_FILE}; use another --out")
        saved = read_json(path, error=CheckpointError)
        try:
            self._values = msgspec.convert(saved.get("settings"), dict[str, dict[str, int | float]])
            self._found = msgspec.convert(saved.get("scores"), dict[str, TrialScore])
        except msgspec.ValidationError:
            saved = {}
        if saved.get("search") != self._about:
            change = find_difference(saved.get("search"), self._about) or "or damaged"
            raise CheckpointError(
                f"{path} is of a search with other flags or of another version ({change}); use the same "
                "flags or another --out"
            )

    def _write_trials(self) -> None:
        """Replace the file of finished trials.

        A search that is resumed tries the given settings and final runs again if they failed, but no others:
        Optuna would draw different ones.
        """
        final = {BEST_RUN, DEFAULT_RUN}
        scores = {
            key: vars(each) if isinstance(each, Estimate) else each
            for key, each in self._found.items()
            if isinstance(each, Estimate) or not (key in final or "-00-" in key)
        }
        whole = {"search": self._about, "settings": self._values, "scores": scores}
        replace_file(self._out / TRIALS_FILE, json.dumps(whole, indent=1, allow_nan=False, sort_keys=True))


def rank_score(score: TrialScore) -> float:
    """Return the value of a score; minus infinity for a trial that failed."""
    return score.value if isinstance(score, Estimate) else -math.inf
