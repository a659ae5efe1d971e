"""Result of a score on recorded episodes: figures with 95 % intervals over episodes, JSON and a table."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsde_policy.core.spec import StateSpec
from nsde_policy.data import Demonstrations
from nsde_policy.data.angles import wrap_columns
from nsde_policy.eval.offline.frames import EPISODE_PARTS
from nsde_policy.eval.offline.sums import EpisodeSums, FloatArray, replace_nan
from nsde_policy.eval.tables import Cell, Table

COVERAGE_LEVELS = (0.5, 0.68, 0.95)
"""Probabilities of the central intervals whose coverage is measured."""
LOG_PROBS = {"log_prob_state": "next state", "log_prob_action": "action"}
"""Log-likelihoods and their titles."""
PREDICTORS = {
    "sample": "one sampled plan",
    "mean_plan": "mean of the plans",
    "repeat": "repeat the last action",
    "constant": "mean action",
}
"""What is compared with recorded actions, and its titles; the last two are baselines."""
COVERAGES = {
    "coverage_actions": "action, σ",
    "coverage_observations": "observation, σ",
    "coverage_plans": "action, sampled plans",
}
"""Intervals whose coverage is measured, and their titles."""
NO_COVERAGE = {
    "coverage_actions": "the method reports no σ",
    "coverage_observations": "the method reports no σ",
    "coverage_plans": "sampled without noise",
}
"""Why a score has no coverage."""
PART_TITLES = {"all": "all frames", "first": "first chunk", "last": "last chunk"}
SMALLEST_SPREAD = 1e-6
"""An action whose standard deviation is below this fraction of its demonstrated range counts as constant."""
MAX_PRINTED_ACTIONS = 8
"""Most action dimensions whose errors are printed one by one; the JSON file holds all of them."""


@dataclass(frozen=True)
class ActionScale:
    """Mean and standard deviation of each recorded action, angles on the circle."""

    mean: FloatArray
    std: FloatArray
    """Standard deviations; the demonstrated range for an action that is constant in the scored episodes."""
    angles: tuple[int, ...]

    @classmethod
    def measure(cls, demos: Demonstrations, spec: StateSpec) -> "ActionScale":
        """Measure the actions of the scored episodes."""
        actions = demos.act.astype(np.float64)
        mean, angles = actions.mean(0), list(demos.act_angles)
        if angles:
            mean[angles] = np.arctan2(np.sin(actions[:, angles]).mean(0), np.cos(actions[:, angles]).mean(0))
        std = np.sqrt(np.square(wrap_columns(actions - mean, angles)).mean(0))
        span = (np.array(spec.high) - np.array(spec.low))[spec.obs_dim :]
        return cls(mean, np.where(std > SMALLEST_SPREAD * span, std, span), demos.act_angles)


@dataclass(frozen=True)
class OfflineScore:
    """Figures of one policy on recorded episodes."""

    context: Mapping[str, Any]
    """Run, store, episodes and settings, for JSON."""
    scale: ActionScale
    sums: Mapping[str, Mapping[str, EpisodeSums]]
    """Sums of each of `EPISODE_PARTS` by figure: log-likelihoods (episodes,), squared errors (episodes,
    horizon, act_dim) and coverages (episodes, levels, dimensions)."""

    @property
    def horizon(self) -> int:
        """Number of actions that are compared."""
        return int(self.context["horizon"])

    def error(self, predictor: str, part: str = "all") -> EpisodeSums:
        """Return the error by horizon in standard deviations of each action, (episodes, horizon)."""
        squared = self.sums[part][f"error_{predictor}"]
        return EpisodeSums(squared.total / self.scale.std**2, squared.count, root=True).pool(-1)

    def coverage(self, name: str, part: str = "all") -> EpisodeSums | None:
        """Return the coverage of `COVERAGE_LEVELS`, (episodes, levels); None if the method has none."""
        found = self.sums[part].get(name)
        return None if found is None or not found.count.any() else found.pool(-1)

    def to_dict(self) -> dict[str, Any]:
        """Return context and figures as plain lists and numbers, None for unknown ones."""
        figures = {part: self._part_to_dict(part) for part in EPISODE_PARTS}
        means, stds = self.scale.mean.tolist(), self.scale.std.tolist()
        return {**self.context, "action_mean": means, "action_std": stds, "parts": figures}

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def _part_to_dict(self, part: str) -> dict[str, Any]:
        sums = self.sums[part]
        return {
            "log_prob": {
                name.removeprefix("log_prob_"): sums[name].estimate().to_dict()
                for name in LOG_PROBS
                if name in sums
            },
            "error_in_std": {name: self.error(name, part).estimate().to_dict() for name in PREDICTORS},
            "error_per_action": {name: sums[f"error_{name}"].estimate().to_dict() for name in PREDICTORS},
            "coverage": {
                name.removeprefix("coverage_"): {
                    "levels": list(COVERAGE_LEVELS),
                    **found.estimate().to_dict(),
                    "per_dimension": replace_nan(sums[name].compute().tolist()),
                }
                for name in COVERAGES
                if (found := self.coverage(name, part)) is not None
            },
        }

    def tables(self) -> list[Table]:
        """Return likelihood, errors by horizon, errors of single actions if there are few, and coverage."""
        parts, shown = [*PART_TITLES.values()], choose_horizons(self.horizon)
        horizons, actions = [f"h = {h}" for h in shown], self.sums["all"]["error_sample"]
        levels = [f"{100 * level:.0f} %" for level in COVERAGE_LEVELS]
        likelihood: list[list[Cell]] = [
            [title, *(self.sums[part][name].at() for part in EPISODE_PARTS)]
            for name, title in LOG_PROBS.items()
            if name in self.sums["all"]
        ]
        errors: list[list[Cell]] = [
            [f"{title}, {PART_TITLES[part]}", *(self.error(name, part).at(h - 1) for h in shown)]
            for part in EPISODE_PARTS
            for name, title in PREDICTORS.items()
        ]
        single: list[list[Cell]] = [
            [f"action {i}", *(actions.at(h - 1, i) for h in shown)] for i in range(actions.total.shape[-1])
        ]
        coverage: list[list[Cell]] = [
            [f"{title}, {PART_TITLES[part]}", *(found.at(i) for i in range(len(levels)))]
            for name, title in COVERAGES.items()
            for part in EPISODE_PARTS
            if (found := self.coverage(name, part)) is not None
        ]
        tables = [
            Table("likelihood", ["log-likelihood, nats per control period", *parts], likelihood),
            Table("errors", ["action error, RMS in standard deviations of each action", *horizons], errors),
            Table("actions", ["error of one sampled plan, RMS in native units", *horizons], single),
            Table("coverage", ["coverage of central intervals", *levels], coverage),
        ]
        return [
            table
            for table in tables
            if table.lines and (table.name != "actions" or len(single) <= MAX_PRINTED_ACTIONS)
        ]

    def as_text(self) -> str:
        """Return Markdown tables, with 95 % intervals over episodes."""
        about = self.context
        head = (
            f"{about['run']} ({about['method']}) on {about['selection']}\n"
            f"{about['scored_frames']} of {about['frames']} frames, {about['samples']} plans from each; "
            "95 % intervals over episodes"
        )
        learned, sampled = about["learned_sampling"], about["sampling"]
        notes = []
        if not any(name in self.sums["all"] for name in LOG_PROBS):
            notes.append("the method has no likelihood")
        elif learned != sampled:
            changes = ", ".join(f"{k} {v}" for k, v in learned.items() if sampled[k] != v)
            notes.append(f"likelihood and σ as learned ({changes}); plans as sampled")
        if self.coverage("coverage_plans") is None:
            notes.append(f"no coverage of sampled plans: {NO_COVERAGE['coverage_plans']}")
        return "\n\n".join([head, *(table.to_markdown() for table in self.tables()), *notes])


def choose_horizons(horizon: int, most: int = 5) -> list[int]:
    """Return at most `most` horizons to print: the first, the last and powers of two between them."""
    powers = [2**i for i in range(horizon.bit_length()) if 2**i < horizon]
    return [*powers[:1], *powers[1:][-(most - 2) :], horizon]
