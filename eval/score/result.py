"""Result of a score on recorded episodes: figures with 95 % intervals, and what they mean in a few lines."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from nsde_policy.core.spec import StateSpec
from nsde_policy.data import Demonstrations
from nsde_policy.data.angles import wrap_columns
from nsde_policy.data.goal import circular_mean
from nsde_policy.interface.roughness import compare_roughness, describe_roughness
from nsde_policy.methods.registry import get_method
from nsde_policy.run_directory import RunRecord

from ..statistics import (
    MIN_PAIRS,
    Difference,
    EpisodeSums,
    FloatArray,
    estimate_difference,
    replace_nan,
    verdict,
)
from ..tables import EMPTY_CELL, format_label
from .verdict import Verdict, judge

COVERAGE_LEVELS = (0.5, 0.68, 0.95)
"""Probabilities of the central intervals whose coverage is measured."""
LOG_PROBS = {"log_prob_state": "next state", "log_prob_action": "action"}
"""Log-likelihoods and their titles."""
SCORE_COLUMNS = {"error": "error"} | {name: f"log-likelihood, {title}" for name, title in LOG_PROBS.items()}
"""Figures whose differences between runs are estimated, and their titles; the error is over all horizons."""
PREDICTORS = {
    "sample": "one sampled plan",
    "mean_plan": "mean of the plans",
    "repeat": "repeat the last action",
    "linear": "linear model",
}
"""Titles of what is compared with recorded actions."""
COVERAGES = {"coverage_actions": "action", "coverage_observations": "observation"}
"""Parts of the next state in the intervals of σ, and their titles."""
SMALLEST_SPREAD = 1e-6
"""An action whose standard deviation is below this fraction of its demonstrated range counts as constant."""
SMALL_GAIN = 0.02
"""Relative differences of the error up to this count as none."""
FITTING = (0.90, 0.98)
"""Fractions of recorded actions in the 95 % interval at which σ fits."""


@dataclass(frozen=True)
class ActionScale:
    """Mean and standard deviation of each recorded action, angles on the circle."""

    mean: FloatArray
    std: FloatArray
    """Standard deviations; the demonstrated range for an action that is constant in the scored episodes."""
    angles: tuple[int, ...]
    names: tuple[str, ...]
    binary: tuple[bool, ...]
    """Whether each action takes two values only."""

    @classmethod
    def measure(cls, demos: Demonstrations, spec: StateSpec) -> "ActionScale":
        """Measure the actions of the scored episodes."""
        actions = demos.act.astype(np.float64)
        angles = list(demos.act_angles)
        mean = circular_mean(actions, angles)
        std = np.sqrt(np.square(wrap_columns(actions - mean, angles)).mean(0))
        span = (np.array(spec.high) - np.array(spec.low))[spec.obs_dim :]
        std = np.where(std > SMALLEST_SPREAD * span, std, span)
        names = demos.act_names or tuple(f"action {column}" for column in range(actions.shape[1]))
        recorded = {column for column, *_ in spec.binary}
        binary = tuple(i in recorded or len(np.unique(column)) == 2 for i, column in enumerate(actions.T))
        return cls(mean, std, demos.act_angles, names, binary)


@dataclass(frozen=True, repr=False)
class Score:
    """Figures of one policy on recorded episodes, a row of an `ScoreComparison`."""

    name: str
    """Unique name, such as "diffusion, DDIM-10"."""
    record: RunRecord
    """Settings and demonstrations of the run."""
    context: Mapping[str, object]
    """Run, store, episodes and settings, for JSON."""
    scale: ActionScale
    sums: Mapping[str, EpisodeSums]
    """Sums by figure: log-likelihoods (episodes,), squared errors (episodes, horizon, act_dim), coverages
    (episodes, levels, dimensions) and squared second differences (episodes,)."""
    training: Mapping[str, EpisodeSums] = field(default_factory=dict)
    """The same sums over some frames of the training episodes; empty if they are not known."""

    def __repr__(self) -> str:
        return "\n".join([*describe_score(self), f"Scored: {self.context['selection']}"])

    @property
    def method(self) -> str:
        """Name of the method, such as "diffusion"."""
        return self.record.config.method

    @property
    def label(self) -> str:
        """Name with the method's title."""
        return format_label(self.name, self.method, get_method(self.method).title)

    @property
    def horizon(self) -> int:
        """Number of actions that are compared."""
        return int(self.sums["error_sample"].total.shape[1])

    def error(self, predictor: str) -> EpisodeSums:
        """Return the error by horizon in standard deviations of each action, (episodes, horizon)."""
        return self._scale_error(self.sums[f"error_{predictor}"])

    @property
    def training_error(self) -> EpisodeSums:
        """The same error of the mean plan in the training episodes, (episodes, horizon)."""
        return self._scale_error(self.training["error_mean_plan"])

    def _scale_error(self, squared: EpisodeSums) -> EpisodeSums:
        return EpisodeSums(squared.total / self.scale.std**2, squared.count, root=True).pool(-1)

    def coverage(self, name: str) -> EpisodeSums | None:
        """Return one of `COVERAGES` at all `COVERAGE_LEVELS`, (episodes, levels); None without a σ."""
        coverage = self.sums.get(name)
        return None if coverage is None or not coverage.count.any() else coverage.pool(-1)

    @property
    def roughness(self) -> float | None:
        """How many times as rough as the recorded commands the planned ones are; None if it is unknown."""
        planned, recorded = (self.sums.get(f"roughness_{name}") for name in ("planned", "recorded"))
        if planned is None or recorded is None or not recorded.count.any():
            return None
        return compare_roughness(float(planned.compute()), float(recorded.compute()))

    @property
    def verdict(self) -> Verdict:
        """Whether to expect the run to work, why, and what to do."""
        return judge(self)

    def to_dict(self) -> dict[str, object]:
        """Return context and figures as plain lists and numbers, None for unknown ones."""
        sums = self.sums
        predictors = [name for name in PREDICTORS if f"error_{name}" in sums]
        return {
            **self.context,
            "verdict": self.verdict.to_dict(),
            "action_mean": self.scale.mean.tolist(),
            "action_std": self.scale.std.tolist(),
            "log_prob": {
                name.removeprefix("log_prob_"): sums[name].intervals.to_dict()
                for name in LOG_PROBS
                if name in sums
            },
            "error_in_std": {name: self.error(name).intervals.to_dict() for name in predictors},
            "error_per_action": {name: sums[f"error_{name}"].intervals.to_dict() for name in predictors},
            "roughness": self.roughness,
            "coverage": {
                name.removeprefix("coverage_"): {
                    "levels": list(COVERAGE_LEVELS),
                    **coverage.intervals.to_dict(),
                    "per_dimension": replace_nan(sums[name].compute().tolist()),
                }
                for name in COVERAGES
                if (coverage := self.coverage(name)) is not None
            },
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def column(self, name: str, horizon: int) -> EpisodeSums | None:
        """Return the sums of one of `SCORE_COLUMNS`; None if the method has none."""
        if name == "error":
            return self.error("sample")[:, :horizon].pool(1)
        return self.sums.get(name)

    def difference(self, other: "Score", column: str) -> Difference | None:
        """Return a column of this run minus the other, paired by episode; None if one lacks it."""
        horizon = min(self.horizon, other.horizon)
        mine, theirs = self.column(column, horizon), other.column(column, horizon)
        if mine is None or theirs is None:
            return None
        return Difference(**asdict(estimate_difference(mine, theirs).at(n=len(mine.total))))

    def decide(self, other: "Score", column: str = "error") -> str:
        """Return which of the two has the smaller error, or that no difference is shown."""
        difference = self.difference(other, column)
        return EMPTY_CELL if difference is None else verdict(difference, a=other.label, b=self.label)


def describe_score(score: Score) -> list[str]:
    """Return the verdict on a run: its error against repeating the last action, σ, and how sure this is."""
    last = score.horizon - 1
    errors = f"{_compare_errors(score, last)}; {_compare_errors(score, 0)}{_blame(score)}"
    lines = [str(score.verdict), errors]
    coverage = _cover(score)
    if coverage is not None:
        fraction = float(coverage.compute()[-1])
        low, high = FITTING
        fit = "fits" if low <= fraction <= high else "is too narrow" if fraction < low else "is too wide"
        can_be_scaled = bool(score.record.demos.held_out)
        remedy = "`nsde-policy train --preset RUN` scales it" if can_be_scaled else "record more episodes"
        advice = "" if fit == "fits" else f"; {remedy}"
        lines.append(
            f"σ {fit}: {fraction:.0%} of recorded actions in its {COVERAGE_LEVELS[-1]:.0%} interval{advice}"
        )
    if score.roughness is not None:
        lines.append(describe_roughness(score.roughness))
    return lines


def describe_episodes(score: Score) -> list[str]:
    """Return a line about each scored episode: the error of a plan, and of repeating the last action."""
    errors = [score.error(name).pool(1) for name in ("sample", "repeat")]
    each = [error.compute(np.eye(len(error.total))) for error in errors]
    return [f"error {ours:.2f}, repeating {theirs:.2f}" for ours, theirs in zip(*each, strict=True)]


def _cover(score: Score) -> EpisodeSums | None:
    """Return how often σ covers recorded actions; binary ones do not count, because no σ fits them."""
    coverage, continuous = score.sums.get("coverage_actions"), ~np.array(score.scale.binary)
    if coverage is None or not continuous.any():
        return None
    return coverage[..., continuous].pool(-1)


def _compare_errors(score: Score, step: int) -> str:
    """Compare the error some periods ahead with the error of repeating the last action."""
    ours, theirs = (score.error(name)[:, step] for name in ("sample", "repeat"))
    difference = estimate_difference(ours, theirs)
    gain = 1 - float(ours.compute()) / max(float(theirs.compute()), 1e-12)
    when = "in the next period" if step == 0 else f"{step + 1} periods ahead"
    if abs(gain) <= SMALL_GAIN:
        return f"{when} as good as repeating the last action"
    is_sure = bool(np.isfinite(difference.low)) and (difference.high < 0 or difference.low > 0)
    word = "better" if gain > 0 else "worse"
    unsure = "" if is_sure or len(ours.total) < MIN_PAIRS else ", but the interval includes 0"
    return f"{when} {abs(gain):.0%} {word} than repeating the last action{unsure}"


def _blame(score: Score) -> str:
    """Name the action that makes the next period worse than repeating the last one, if there is one."""
    ours, theirs = (
        score.sums[f"error_{name}"].total[:, 0].sum(0) / score.scale.std**2 for name in ("sample", "repeat")
    )
    excess = ours - theirs
    worst = int(np.argmax(excess))
    if excess.sum() <= 0 or excess[worst] < 0.5 * excess.sum() or len(excess) == 1:
        return ""
    binary = ", which is binary" if score.scale.binary[worst] else ""
    return f" because of {score.scale.names[worst]}{binary}"
