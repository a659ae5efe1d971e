"""Results of the experiment: results.json, a Markdown table, sampled paths, and whether targets are met."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import Tensor

from nsde_policy import __version__
from nsde_policy.errors import ComparisonError
from nsde_policy.eval.bifurcation.experiment import ExperimentSettings, JobResult, ScoredRun, View
from nsde_policy.eval.bifurcation.methods import ABLATION, METHOD_NAMES, NEURAL_SDE, VectorField
from nsde_policy.eval.bifurcation.scores import PathScores
from nsde_policy.eval.tables import format_markdown
from nsde_policy.files import read_json, replace_file

COMPLETE = list(ABLATION)[-1]
"""The row of the ablation that is the Neural SDE."""
SCORE_COLUMNS = {
    "upper": ("upper %", ".1%"),
    "lower": ("lower %", ".1%"),
    "off_branch": ("off-branch %", ".1%"),
    "fork_error": ("fork error %", ".2%"),
    "energy_distance": ("energy distance", ".4f"),
}
"""Title and number format of each tabulated score."""
BALANCE_TARGET = (0.4, 0.6)
MAX_OFF_BRANCH = 0.02
MAX_FORK_ERROR = 0.02


@dataclass(frozen=True)
class SeedRange:
    """Mean, smallest and largest value of a score over the training seeds."""

    value: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Format without a unit, which the title of a column names."""
        value, low, high = (format(number, form).rstrip("%") for number in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


class _ResultsFile(msgspec.Struct, forbid_unknown_fields=True):
    """Content of results.json."""

    nsde_policy: str
    """Version of the package that wrote the file."""
    settings: ExperimentSettings
    summary: list[dict[str, Any]]
    """Computed from the runs."""
    runs: list[ScoredRun]


@dataclass(frozen=True)
class ExperimentResults:
    """All results, in an order that does not depend on which job finished first."""

    settings: ExperimentSettings
    runs: list[ScoredRun]
    paths: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    fields: dict[tuple[View, int], VectorField] = field(default_factory=dict)

    @classmethod
    def collect(cls, settings: ExperimentSettings, results: Iterable[JobResult]) -> "ExperimentResults":
        """Collect the results of all jobs."""
        runs: list[ScoredRun] = []
        drawn: list[JobResult] = []
        for result in results:
            runs += result.runs
            drawn += [result] if result.runs[0].seed == settings.seeds[0] else []
        order = [*ABLATION, *METHOD_NAMES]
        runs.sort(key=lambda run: (run.density, order.index(run.label), run.seed))
        paths = dict(sorted(item for result in drawn for item in result.paths.items()))
        return cls(settings, runs, paths, {k: v for result in drawn for k, v in result.fields.items()})

    @classmethod
    def read(cls, path: Path) -> "ExperimentResults":
        """Read results.json, without paths and fields.

        Raises:
            ComparisonError: If the file cannot be read or holds anything else.
        """
        try:
            content = msgspec.convert(read_json(path, error=ComparisonError), _ResultsFile)
        except msgspec.ValidationError as error:
            raise ComparisonError(
                f"{path} is not a results.json of `nsde-policy bifurcation`: {error}"
            ) from error
        return cls(content.settings, content.runs)

    def scores(self, label: str, density: int) -> list[PathScores]:
        """Return the scores of each seed; "Neural SDE" is the ablation's last row."""
        label = COMPLETE if label == NEURAL_SDE else label
        return [run.scores for run in self.runs if (run.label, run.density) == (label, density)]

    def over_seeds(self, label: str, density: int, name: str) -> SeedRange:
        """Return mean and range of a score over the seeds."""
        values = [getattr(scores, name).value for scores in self.scores(label, density)]
        return SeedRange(sum(values) / len(values), min(values), max(values))

    def meets_targets(self, label: str, density: int) -> bool:
        """Check that every seed has both branches in 40 to 60 %, < 2 % off-branch and < 2 % fork error."""
        low, high = BALANCE_TARGET
        return all(
            low <= scores.upper.value <= high
            and low <= scores.lower.value <= high
            and scores.off_branch.value < MAX_OFF_BRANCH
            and scores.fork_error.value < MAX_FORK_ERROR
            for scores in self.scores(label, density)
        )

    def to_json(self) -> str:
        """Format everything but paths and fields; the same bytes for the same settings on one machine."""
        summary = [
            {
                "label": label,
                "density": density,
                **{name: asdict(self.over_seeds(label, density, name)) for name in SCORE_COLUMNS},
                "network_calls": self.scores(label, density)[0].network_calls,
                "bars_met": self.meets_targets(label, density),
            }
            for density in self.settings.densities
            for label in [*METHOD_NAMES, *ABLATION]
        ]
        content = _ResultsFile(__version__, self.settings, summary, self.runs)
        return json.dumps(msgspec.to_builtins(content), indent=1, allow_nan=False)

    def to_markdown(self) -> str:
        """Format one table of the methods and one of the ablation."""
        settings = self.settings
        head = (
            f"{settings.paths} generated paths per seed, {len(settings.seeds)} seed(s) "
            f"({', '.join(map(str, settings.seeds))}), {settings.train_steps} training steps; "
            "mean (smallest to largest over the seeds)."
        )
        tables = [self._format_table("method", METHOD_NAMES), self._format_table("parts", list(ABLATION))]
        return "\n\n".join([head, *tables])

    def _format_table(self, first: str, labels: Sequence[str]) -> str:
        titles = [title for title, _ in SCORE_COLUMNS.values()]
        rows = []
        for density in self.settings.densities:
            for label in labels:
                scores = [
                    format(self.over_seeds(label, density, name), form)
                    for name, (_, form) in SCORE_COLUMNS.items()
                ]
                calls = f"{self.scores(label, density)[0].network_calls:,}"
                met = "met" if self.meets_targets(label, density) else "–"
                rows.append([str(density), label, *scores, calls, met])
        return format_markdown(["density", first, *titles, "network calls", "bars"], rows)

    def write(self, out: Path) -> list[Path]:
        """Write results.json, results.md and paths.npz atomically; return their paths."""
        arrays = {
            f"{label} at density {density}": paths.numpy() for (label, density), paths in self.paths.items()
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        contents = {
            "results.json": self.to_json().encode(),
            "results.md": self.to_markdown().encode() + b"\n",
            "paths.npz": buffer.getvalue(),
        }
        for name, content in contents.items():
            replace_file(out / name, content)
        return [out / name for name in contents]
