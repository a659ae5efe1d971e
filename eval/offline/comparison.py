"""Scores of several runs on the same recorded episodes, compared episode by episode."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.run import choose_names
from nsde_policy.eval.compare.table import EMPTY_CELL, format_difference, format_markdown
from nsde_policy.eval.offline.frames import ScoredEpisodes, select_episodes
from nsde_policy.eval.offline.result import (
    COVERAGE_LEVELS,
    COVERAGES,
    LOG_PROBS,
    PREDICTORS,
    OfflineScore,
    format_estimate,
)
from nsde_policy.eval.offline.score import OfflineConfig, score_episodes_offline
from nsde_policy.eval.offline.sums import EpisodeSums, estimate_difference
from nsde_policy.eval.statistics import MIN_PAIRS, Estimate, verdict
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import RunDirectory, RunRecord

BASELINE_PREDICTORS = ("repeat", "constant")
"""Predictors that do not depend on the run."""
OFFLINE_COLUMNS = ("log_prob_state", "log_prob_action", "error")
"""Figures whose differences between runs are estimated; `error` is over all horizons."""


@dataclass(frozen=True)
class OfflineRun:
    """A run with its score on recorded episodes."""

    label: str
    path: Path
    record: RunRecord
    score: OfflineScore

    def column(self, name: str, horizon: int) -> EpisodeSums | None:
        """Return the sums of one of `OFFLINE_COLUMNS`; None if the method has none."""
        if name == "error":
            return self.score.error("sample").first(horizon).pool(1)
        return self.score.sums["all"].get(name)

    def difference(self, reference: "OfflineRun", name: str) -> Estimate | None:
        """Return a column minus that of the reference, paired by episode; None if one has none."""
        horizon = min(self.score.horizon, reference.score.horizon)
        own, other = self.column(name, horizon), reference.column(name, horizon)
        if own is None or other is None:
            return None
        return estimate_difference(own, other).at(n=len(own.total))

    def decide(self, reference: "OfflineRun") -> str:
        """Return which of the two has the smaller error, or that no difference is shown."""
        found = self.difference(reference, "error")
        assert found is not None
        return verdict(found, a=reference.label, b=self.label)


@dataclass(frozen=True)
class OfflineComparison:
    """Runs scored on the same episodes; the first is the reference."""

    runs: tuple[OfflineRun, ...]
    note: str
    """One sentence about the episodes."""

    @property
    def reference(self) -> OfflineRun:
        """The run that others are compared with."""
        return self.runs[0]

    @property
    def horizon(self) -> int:
        """Number of actions that are compared for all runs."""
        return min(run.score.horizon for run in self.runs)

    @property
    def longest(self) -> OfflineScore:
        """Score with the longest horizon, which draws the baselines."""
        return max((run.score for run in self.runs), key=lambda score: score.horizon)

    def to_json(self) -> str:
        """Return scores and paired differences as JSON."""
        differences = [
            {"run": run.label, "minus": self.reference.label, "verdict": run.decide(self.reference)}
            | {name: _to_dict(run.difference(self.reference, name)) for name in OFFLINE_COLUMNS}
            for run in self.runs[1:]
        ]
        runs = [{"label": run.label, **run.score.to_dict()} for run in self.runs]
        values = {"selection": self.note, "differences": differences, "runs": runs}
        return json.dumps(values, indent=2, allow_nan=False)

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Return head and lines of the tables: scores and, for several runs, differences."""
        found = [self._score_table()]
        if len(self.runs) > 1:
            found.append(self._difference_table())
        return found

    def explain(self) -> str:
        """Return how to read the tables."""
        return (
            f"Recorded episodes: {self.note}. Log-likelihood in nats per control period, with the learned "
            "spread. Error: root mean square of one sampled plan in standard deviations of each action, h "
            f"control periods ahead; up to h = {self.horizon} for the first and last chunk, and as far as "
            "both runs plan for differences. Coverage: share of recorded steps in the central "
            f"{100 * COVERAGE_LEVELS[-1]:.0f} % interval. Intervals: 95 %, bootstrap over episodes; "
            "differences are paired by episode. Ahead: the interval of the error's difference excludes 0, on "
            f"at least {MIN_PAIRS} episodes; fewer give no verdict. {EMPTY_CELL}: the method has no such "
            "figure, or samples without noise."
        )

    def as_text(self) -> str:
        """Return Markdown tables."""
        return "\n\n".join([*(format_markdown(*table) for table in self.tables()), self.explain()])

    def _score_table(self) -> tuple[list[str], list[list[str]]]:
        head = ["run", *(f"log-likelihood, {title}" for title in LOG_PROBS.values())]
        shown = sorted({1, self.horizon})
        head += [f"error, h = {h}" for h in shown]
        head += ["error, first chunk", "error, last chunk", *(f"coverage, {t}" for t in COVERAGES.values())]
        lines = []
        for run in self.runs:
            score = run.score
            sums = [score.sums["all"].get(name) for name in LOG_PROBS]
            cells = [EMPTY_CELL if each is None else format_estimate(each.estimate().at()) for each in sums]
            cells += self._format_errors(score, "sample", shown)
            covered = [score.coverage(name) for name in COVERAGES]
            cells += [_format_share(found) for found in covered]
            lines.append([run.label, *cells])
        empty = [EMPTY_CELL] * len(COVERAGES)
        for name in BASELINE_PREDICTORS:
            errors = self._format_errors(self.reference.score, name, shown)
            lines.append([PREDICTORS[name], *[EMPTY_CELL] * len(LOG_PROBS), *errors, *empty])
        return head, lines

    def _format_errors(self, score: OfflineScore, predictor: str, horizons: Sequence[int]) -> list[str]:
        by_horizon = score.error(predictor).estimate()
        cells = [format_estimate(by_horizon.at(h - 1)) for h in horizons]
        parts = [score.error(predictor, part).first(self.horizon).pool(1) for part in ("first", "last")]
        return [*cells, *(format_estimate(part.estimate().at()) for part in parts)]

    def _difference_table(self) -> tuple[list[str], list[list[str]]]:
        titles = [*(f"log-likelihood, {title}" for title in LOG_PROBS.values()), "error"]
        head = ["run", *(f"{title} − {self.reference.label}" for title in titles), "verdict"]
        lines = []
        for run in self.runs[1:]:
            found = [run.difference(self.reference, name) for name in OFFLINE_COLUMNS]
            cells = [EMPTY_CELL if each is None else format_difference(each) for each in found]
            lines.append([run.label, *cells, run.decide(self.reference)])
        return head, lines


def compare_offline(
    runs: Sequence[Path],
    demos: Path,
    *,
    config: OfflineConfig | None = None,
    reference: str | None = None,
    device: str = "cpu",
) -> OfflineComparison:
    """Score runs on the episodes of a store that none of them has seen, or that all have.

    Each run is scored up to its own horizon. First and last chunks are as long as the longest of all runs.

    Args:
        runs: Run directories.
        demos: Store of demonstrations.
        config: Settings of the scores.
        reference: Label of the run that others are compared with; None for the first Neural SDE.
        device: Torch device of the policies.

    Raises:
        ComparisonError: If no episode is unseen by all runs, the runs predict different actions, or one is
            unfinished.
    """
    config = config or OfflineConfig()
    for path in runs:
        if (stopped := RunDirectory(path).describe_unfinished()) is not None:
            raise ComparisonError(stopped)
    policies = [Policy.from_pretrained(path).to(device) for path in runs]
    labels = _choose_labels({path: policy.record for path, policy in zip(runs, policies, strict=True)})
    omitted = config.accept_omitted_chunks
    scored = _share_episodes(
        [select_episodes(policy, demos, accept_omitted_chunks=omitted) for policy in policies], labels
    )
    chunk = max(policy.chunk for policy in policies)
    found = []
    for path, policy, label, episodes in zip(runs, policies, labels, scored, strict=True):
        score = score_episodes_offline(policy, episodes, config, name=str(path), chunk=chunk, device=device)
        found.append(OfflineRun(label, path, policy.record, score))
    note = f"{len(scored[0].demos)} episodes of {demos}{_describe_knowledge(scored, labels)}"
    return OfflineComparison(tuple(_put_first(found, reference)), note)


def _describe_knowledge(scored: Sequence[ScoredEpisodes], labels: Sequence[str]) -> str:
    """Say which runs were trained on the scored episodes, as far as they record their episodes."""
    seen = [label for label, each in zip(labels, scored, strict=True) if each.seen]
    if seen:
        return f"; {', '.join(seen)} TRAINED on them"
    unknown = [label for label, each in zip(labels, scored, strict=True) if not each.is_known]
    if unknown:
        return f"; {', '.join(unknown)} may have TRAINED on some: their runs do not record episodes"
    return ", unseen in training"


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
    found = []
    for each in scored:
        rows = [each.episodes.index(i) for i in common]
        found.append(each.select(rows))
    for label, each in zip(labels, found, strict=True):
        if not np.array_equal(each.demos.act, found[0].demos.act):
            raise ComparisonError(
                f"{label} predicts other actions than {labels[0]} (demos.act_key): compare runs of one robot"
            )
    return found


def _put_first(runs: list[OfflineRun], reference: str | None) -> list[OfflineRun]:
    if reference is None:
        chosen = next((run for run in runs if run.record.config.method == "neural_sde"), runs[0])
    else:
        named = [run for run in runs if reference in (run.label, run.record.config.method, str(run.path))]
        if not named:
            labels = ", ".join(run.label for run in runs)
            raise ComparisonError(f"--reference {reference!r} is none of the runs: {labels}")
        chosen = named[0]
    return [chosen, *(run for run in runs if run is not chosen)]


def _format_share(found: EpisodeSums | None) -> str:
    """Format the coverage of the widest interval."""
    return EMPTY_CELL if found is None else format_estimate(found.estimate().at(len(COVERAGE_LEVELS) - 1))


def _to_dict(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    values = {"value": found.value, "low": found.low, "high": found.high}
    return {name: value if np.isfinite(value) else None for name, value in values.items()}
