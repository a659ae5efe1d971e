"""What the experiment found: results.json, a Markdown table, sampled paths, and the bars it is held to."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from nsde_policy import __version__
from nsde_policy.eval.bifurcation.experiment import METHODS, NEURAL_SDE, JobResult, Run, Settings
from nsde_policy.eval.bifurcation.methods import ABLATION, Field
from nsde_policy.eval.bifurcation.scores import Scores
from nsde_policy.files import replace_file

WHOLE = list(ABLATION)[-1]
"""The row of the ablation that is the Neural SDE."""
FIGURES = {
    "upper": ".1%",
    "lower": ".1%",
    "off_branch": ".1%",
    "fork_error": ".2%",
    "energy_distance": ".4f",
}
"""What is tabulated, and how it is written."""
BALANCE = (0.4, 0.6)
MOST_OFF_BRANCH = 0.02
MOST_FORK_ERROR = 0.02


@dataclass(frozen=True)
class OverSeeds:
    """A figure over the training seeds: its mean, its smallest and its largest value."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Report:
    """All results, in an order that does not depend on which job ended first."""

    settings: Settings
    runs: list[Run]
    paths: dict[tuple[str, int], Tensor]
    fields: dict[tuple[str, int], Field]

    @classmethod
    def collect(cls, settings: Settings, results: Iterable[JobResult]) -> "Report":
        """Put the results of all jobs together."""
        found = list(results)
        order = [*ABLATION, *METHODS]
        runs = sorted(
            (run for result in found for run in result.runs),
            key=lambda run: (run.density, order.index(run.label), run.seed),
        )
        return cls(
            settings,
            runs,
            dict(sorted(item for result in found for item in result.paths.items())),
            dict(sorted(item for result in found for item in result.fields.items())),
        )

    def scores(self, label: str, density: int) -> list[Scores]:
        """One per seed; "Neural SDE" is the ablation's last row."""
        label = WHOLE if label == NEURAL_SDE else label
        return [run.scores for run in self.runs if (run.label, run.density) == (label, density)]

    def over_seeds(self, label: str, density: int, figure: str) -> OverSeeds:
        """Mean, smallest and largest over the seeds."""
        values = [getattr(scores, figure).value for scores in self.scores(label, density)]
        return OverSeeds(sum(values) / len(values), min(values), max(values))

    def bars_met(self, label: str, density: int) -> bool:
        """Whether every seed has both branches in 40 to 60 %, < 2 % off-branch and < 2 % fork error."""
        return all(
            BALANCE[0] <= scores.upper.value <= BALANCE[1]
            and BALANCE[0] <= scores.lower.value <= BALANCE[1]
            and scores.off_branch.value < MOST_OFF_BRANCH
            and scores.fork_error.value < MOST_FORK_ERROR
            for scores in self.scores(label, density)
        )

    def as_json(self) -> str:
        """Everything but paths and fields; the same bytes for the same settings on the same machine."""
        summary = [
            {
                "label": label,
                "density": density,
                **{figure: asdict(self.over_seeds(label, density, figure)) for figure in FIGURES},
                "network_calls": self.scores(label, density)[0].network_calls,
                "bars_met": self.bars_met(label, density),
            }
            for density in self.settings.densities
            for label in [*METHODS, *ABLATION]
        ]
        content = {
            "nsde_policy": __version__,
            "settings": asdict(self.settings),
            "summary": summary,
            "runs": [asdict(run) for run in self.runs],
        }
        return json.dumps(content, indent=1, allow_nan=False)

    def as_markdown(self) -> str:
        """One table for the methods, one for the ablation."""
        settings = self.settings
        head = (
            f"{settings.paths} generated paths per seed, {len(settings.seeds)} seed(s) "
            f"({', '.join(map(str, settings.seeds))}), {settings.train_steps} training steps; "
            "mean (smallest to largest over the seeds)."
        )
        return "\n".join(
            [head, "", *self._table("method", METHODS), "", *self._table("parts", list(ABLATION))]
        )

    def _table(self, first: str, labels: Sequence[str]) -> list[str]:
        columns = ("upper %", "lower %", "off-branch %", "fork error %", "energy distance", "network calls")
        lines = [f"| density | {first} | {' | '.join(columns)} | bars |", "| --- " * 9 + "|"]
        for density in self.settings.densities:
            for label in labels:
                cells = [_cell(self.over_seeds(label, density, name), form) for name, form in FIGURES.items()]
                calls = f"{self.scores(label, density)[0].network_calls:,}"
                met = "met" if self.bars_met(label, density) else "–"
                lines.append(f"| {density} | {label} | {' | '.join([*cells, calls])} | {met} |")
        return lines

    def paths_as_npz(self) -> bytes:
        """The kept paths, one array per label and density."""
        buffer = io.BytesIO()
        arrays = {
            f"{label} at density {density}": paths.numpy() for (label, density), paths in self.paths.items()
        }
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    def write(self, out: Path) -> list[Path]:
        """Write results.json, results.md and paths.npz, each whole or not at all; returns where."""
        contents = {
            "results.json": self.as_json().encode(),
            "results.md": self.as_markdown().encode() + b"\n",
            "paths.npz": self.paths_as_npz(),
        }
        for name, content in contents.items():
            replace_file(out / name, content)
        return [out / name for name in contents]


def _cell(figure: OverSeeds, form: str) -> str:
    """Mean and range; the column's head names the unit."""
    value, low, high = (
        format(number, form).rstrip("%") for number in (figure.value, figure.low, figure.high)
    )
    return f"{value} ({low} to {high})"
