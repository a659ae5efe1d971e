"""Scores of several runs on the same recorded episodes, compared episode by episode."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nsde_policy.assets import get_shipped_name
from nsde_policy.errors import ComparisonError
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunRecord

from ..names import choose_names
from ..rollouts.runner import change_sampling
from ..statistics import MIN_PAIRS, replace_nan
from ..tables import EMPTY_CELL, Cell, Table, tabulate_differences
from .episodes import ScoredEpisodes, select_episodes
from .result import (
    COVERAGE_LEVELS,
    COVERAGES,
    LOG_PROBS,
    PREDICTORS,
    SCORE_COLUMNS,
    Score,
    describe_score,
)
from .scorer import ScoreConfig, score_episodes


@dataclass(frozen=True)
class ScoreComparison:
    """Runs scored on the same episodes; the first is the reference."""

    runs: tuple[Score, ...]
    note: str
    """One sentence about the episodes."""

    @property
    def reference(self) -> Score:
        """The run that others are compared with."""
        return self.runs[0]

    @property
    def horizon(self) -> int:
        """Number of actions that are compared for all runs."""
        return min(run.horizon for run in self.runs)

    def to_json(self) -> str:
        """Return scores and paired differences as JSON."""
        differences = []
        for run in self.runs[1:]:
            values: dict[str, object] = {
                "run": run.label,
                "minus": self.reference.label,
                "verdict": run.decide(self.reference),
            }
            for name in SCORE_COLUMNS:
                difference = run.difference(self.reference, name)
                ends = ("value", "low", "high")
                values[name] = difference and {end: replace_nan(getattr(difference, end)) for end in ends}
            differences.append(values)
        runs = [{"label": run.name, **run.to_dict()} for run in self.runs]
        whole = {"selection": self.note, "differences": differences, "runs": runs}
        return json.dumps(whole, indent=2, allow_nan=False)

    def as_text(self, *, verbose: bool = True) -> str:
        """Return a verdict and Markdown tables: scores and, for several runs, differences.

        One run gets its tables only if `verbose`.
        """
        verdict = "\n".join(describe_score(self.reference))
        if len(self.runs) == 1 and not verbose:
            return f"{verdict}\n{self.note}; --verbose prints tables"
        tables = [self._tabulate_scores()]
        if len(self.runs) > 1:
            tables.append(tabulate_differences(self.runs, self.reference, SCORE_COLUMNS, note=""))
        return "\n\n".join([verdict, *(table.to_markdown() for table in tables), self._explain()])

    def _explain(self) -> str:
        """Return how to read the tables."""
        return (
            f"Recorded episodes: {self.note}. Log-likelihood in nats per control period, with the learned "
            "spread. Error: root mean square of one sampled plan in standard deviations of each action, h "
            "control periods ahead, and as far as both runs plan for differences. Coverage: fraction of "
            f"recorded steps in the central {COVERAGE_LEVELS[-1]:.0%} interval of σ. Roughness: of one plan "
            "every chunk, executed in full, as a multiple of the recorded commands. Intervals: 95 %, "
            "bootstrap over episodes; differences are paired by episode. Ahead: the interval of the error's "
            f"difference excludes 0, on at least {MIN_PAIRS} episodes; fewer give no verdict. {EMPTY_CELL}: "
            "the method has no such figure."
        )

    def _tabulate_scores(self) -> Table:
        periods = sorted({1, self.horizon})
        head = ["run", *(f"log-likelihood, {title}" for title in LOG_PROBS.values())]
        head += [f"error, h = {h}" for h in periods]
        head += [f"coverage, {title}" for title in COVERAGES.values()] + ["roughness"]
        lines: list[list[Cell]] = []
        for run in self.runs:
            likelihood = [run.sums.get(name) for name in LOG_PROBS]
            coverage = [run.coverage(name) for name in COVERAGES]
            cells = [EMPTY_CELL if each is None else each.at() for each in likelihood]
            cells += [run.error("sample").at(h - 1) for h in periods]
            cells += [EMPTY_CELL if each is None else each.at(len(COVERAGE_LEVELS) - 1) for each in coverage]
            cells.append(EMPTY_CELL if run.roughness is None else f"{run.roughness:.2f}")
            lines.append([run.label, *cells])
        empty = [EMPTY_CELL] * len(LOG_PROBS), [EMPTY_CELL] * (len(COVERAGES) + 1)
        for name in ("repeat", "linear"):
            if f"error_{name}" in self.reference.sums:
                errors = [self.reference.error(name).at(h - 1) for h in periods]
                lines.append([PREDICTORS[name], *empty[0], *errors, *empty[1]])
        return Table("offline", head, lines, reference=self.reference.label if len(self.runs) > 1 else "")


def compare_scores(
    runs: Sequence[Path],
    demos: Path,
    *,
    config: ScoreConfig | None = None,
    sampling: Sequence[str] = (),
    device: str = "cpu",
) -> ScoreComparison:
    """Score runs on the episodes of a store that none of them has seen, or that all have.

    Each run is scored up to its own horizon. The strings in `sampling` change settings, such as "alpha=0.5".
    """
    config = config or ScoreConfig()
    policies = [Policy.from_pretrained(path).to(device) for path in runs]
    labels = _choose_labels({path: policy.record for path, policy in zip(runs, policies, strict=True)})
    scored = _share_episodes([select_episodes(policy, demos) for policy in policies], labels)
    scores = []
    for path, policy, label, episodes in zip(runs, policies, labels, scored, strict=True):
        score = score_episodes(
            policy,
            episodes,
            config,
            name=get_shipped_name(path) or str(path),
            sampling=change_sampling(policy.model.config.sampling, sampling),
        )
        scores.append(replace(score, name=label))
    trained = [label for label, each in zip(labels, scored, strict=True) if each.seen]
    knowledge = f"; {', '.join(trained)} TRAINED on them" if trained else ", unseen in training"
    note = f"{len(scored[0].demos)} episodes of {demos}{knowledge}"
    return ScoreComparison(tuple(scores), scored[0].note if len(runs) == 1 else note)


def _choose_labels(records: dict[Path, RunRecord]) -> list[str]:
    """Name each run as in a comparison by environment, with the seed if several share a name."""
    names = choose_names(records)
    shared = [*names.values()]
    return [
        name if shared.count(name) == 1 else f"{name}, seed {records[path].seed}"
        for path, name in names.items()
    ]


def _share_episodes(scored: Sequence[ScoredEpisodes], labels: Sequence[str]) -> list[ScoredEpisodes]:
    """Restrict the episodes of each run to those that all runs are scored on."""
    common = sorted(set(scored[0].episodes).intersection(*(each.episodes for each in scored)))
    if not common:
        raise ComparisonError(
            f"no episode of {scored[0].demos.source} was held out by all of {', '.join(labels)}: train them "
            "with the same --seed and --validation, or give --demos another store"
        )
    shared = [each.select([each.episodes.index(i) for i in common]) for each in scored]
    for label, each in zip(labels, shared, strict=True):
        if not np.array_equal(each.demos.act, shared[0].demos.act):
            raise ComparisonError(
                f"{label} predicts other actions than {labels[0]} (demos.act_key): compare runs of one robot"
            )
    return shared
