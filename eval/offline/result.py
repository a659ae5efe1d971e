"""Result of a score on recorded episodes: figures with 95 % intervals over episodes, JSON and a table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsde_policy.core.spec import StateSpec
from nsde_policy.data import Demonstrations
from nsde_policy.data.angles import wrap_columns
from nsde_policy.eval.offline.frames import EPISODE_PARTS
from nsde_policy.eval.offline.sums import EpisodeSums, FloatArray, replace_nan
from nsde_policy.eval.statistics import Estimate

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
NEGLIGIBLE, SMALLEST_FIXED = 1e-6, 1e-4
"""Values below this fraction of their scale print as 0; below the second number, as powers of ten."""
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

    def as_text(self) -> str:
        """Return tables for a terminal, with 95 % intervals over episodes."""
        about = self.context
        head = [
            f"{about['run']} ({about['method']}) on {about['selection']}",
            f"{about['scored_frames']} of {about['frames']} frames, {about['samples']} plans from each; "
            "95 % intervals over episodes",
        ]
        parts = [*PART_TITLES.values()]
        tables = [
            _format_table("log-likelihood, nats per control period", parts, self._log_prob_rows()),
            *(self._error_table(part) for part in EPISODE_PARTS),
            self._action_table(),
            _format_table(f"coverage in %, nominal {_join_levels()}", parts, self._coverage_rows()),
        ]
        learned, sampled = about["learned_sampling"], about["sampling"]
        notes = []
        if not any(name in self.sums["all"] for name in LOG_PROBS):
            notes.append("the method has no likelihood")
        elif learned != sampled:
            changes = ", ".join(f"{k} {v}" for k, v in learned.items() if sampled[k] != v)
            notes.append(f"likelihood and σ as learned ({changes}); plans as sampled")
        if self.coverage("coverage_plans") is None:
            notes.append(f"no coverage of sampled plans: {NO_COVERAGE['coverage_plans']}")
        return "\n\n".join(["\n".join(head), *filter(None, tables), *notes])

    def _log_prob_rows(self) -> dict[str, list[str]]:
        return {
            title: [format_estimate(self.sums[part][name].estimate().at()) for part in EPISODE_PARTS]
            for name, title in LOG_PROBS.items()
            if name in self.sums["all"]
        }

    def _error_table(self, part: str) -> str:
        shown = choose_horizons(self.horizon)
        rows = {}
        for name, title in PREDICTORS.items():
            found = self.error(name, part).estimate()
            rows[title] = [format_estimate(found.at(h - 1)) for h in shown]
        title = f"action error, {PART_TITLES[part]}, RMS in standard deviations of each action"
        return _format_table(title, [f"h = {h}" for h in shown], rows)

    def _action_table(self) -> str:
        """Return errors of single actions in native units, if there are few."""
        found = self.sums["all"]["error_sample"].estimate()
        actions = found.value.shape[1]
        if actions > MAX_PRINTED_ACTIONS:
            return ""
        shown = choose_horizons(self.horizon)
        rows = {
            f"action {i}": [format_estimate(found.at(h - 1, i), scale=scale) for h in shown]
            for i, scale in enumerate(self.scale.std.tolist())
        }
        title = "error of one sampled plan, all frames, RMS in native units"
        return _format_table(title, [f"h = {h}" for h in shown], rows)

    def _coverage_rows(self) -> dict[str, list[str]]:
        rows = {}
        for name, title in COVERAGES.items():
            cells = [_format_coverage(self.coverage(name, part)) for part in EPISODE_PARTS]
            if any(cells):
                rows[title] = cells
        return rows


def choose_horizons(horizon: int, most: int = 5) -> list[int]:
    """Return at most `most` horizons to print: the first, the last and powers of two between them."""
    powers = [2**i for i in range(horizon.bit_length()) if 2**i < horizon]
    return [*powers[:1], *powers[1:][-(most - 2) :], horizon]


def format_estimate(estimate: Estimate, *, scale: float = 1.0) -> str:
    """Format a value with its interval to three significant digits of the value or of half the interval.

    If both are far below `scale`, the typical size of such values, they are rounding errors and print as 0.
    """
    if not np.isfinite(estimate.value):
        return "–"
    known = bool(np.isfinite(estimate.low))
    values = (estimate.value, estimate.low, estimate.high) if known else (estimate.value,)
    size = max(abs(estimate.value), (estimate.high - estimate.low) / 2 if known else 0.0)
    if size < NEGLIGIBLE * scale:
        cells = ["0"] * len(values)
    elif size < SMALLEST_FIXED:
        cells = [f"{value:.2e}" for value in values]
    else:
        digits = max(0, 2 - int(np.floor(np.log10(size))))
        cells = [f"{round(value, digits) + 0.0:.{digits}f}" for value in values]  # + 0.0: no "-0.00"
    text = f"{cells[0]} [{', '.join(cells[1:]) or 'one episode'}]"
    return text.replace("-", "−")


def _format_coverage(found: EpisodeSums | None) -> str:
    if found is None:
        return ""
    each = found.estimate()
    return " / ".join(
        f"{100 * value:.0f}" + ("" if np.isnan(low) else f" [{100 * low:.0f}, {100 * high:.0f}]")
        for value, low, high in zip(*each, strict=True)
    )


def _join_levels() -> str:
    return " / ".join(f"{100 * level:.0f}" for level in COVERAGE_LEVELS)


def _format_table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Format a table with aligned columns below its title; empty without rows."""
    if not rows:
        return ""
    lines = [["", *columns], *([name, *cells] for name, cells in rows.items())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    body = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([title, *(f"  {line}".rstrip() for line in body)])
