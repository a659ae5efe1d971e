"""Results of video models: intervals over videos, paired differences and a power law of the size."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.eval.statistics import EpisodeSums, estimate_difference
from nsde_video.frame_scores import FIGURES, NO_MODEL

WITHOUT_MODEL = "no model"
"""Variant of the rows that need no model, which all runs share."""


class Runs:
    """Scores of all runs of a folder."""

    def __init__(self, folder: Path) -> None:
        self.notes: list[dict[str, Any]] = []
        self._sums: dict[tuple[str, str, str], list[EpisodeSums]] = defaultdict(list)
        for file in sorted(folder.glob("*.npz")):
            with np.load(file) as arrays:
                note = json.loads(str(arrays["note"]))
                self.notes.append(note)
                for key in arrays.files:
                    if key == "note":
                        continue
                    label, name = key.rsplit("/", 1)
                    is_model = label != NO_MODEL
                    sums = self._sums[note["variant"] if is_model else WITHOUT_MODEL, label, name]
                    if is_model or not sums:
                        sums.append(EpisodeSums(*arrays[key].astype(np.float64)))

    def rows(self, reference: str) -> Iterable[dict[str, Any]]:
        """Return the figures of each variant and trial with intervals over videos, and of each seed."""
        for variant, label in dict.fromkeys((v, t) for v, t, _ in self._sums):
            figures = {}
            for name in FIGURES:
                seeds = self._sums[variant, label, name]
                pooled = self._average(variant, label, name).intervals.at(n=len(seeds[0].total))
                figures[name] = {**vars(pooled), "seeds": [float(each.compute()) for each in seeds]}
            yield {
                "variant": variant,
                "trial": label,
                **figures,
                "difference": self._compare(variant, label, reference),
            }

    def _average(self, variant: str, label: str, figure: str) -> EpisodeSums:
        """Return the mean sums over all seeds of a variant, video by video."""
        seeds = self._sums[variant, label, figure]
        total, count = (
            np.mean([getattr(each, part) for each in seeds], axis=0) for part in ("total", "count")
        )
        return EpisodeSums(total, count)

    def _compare(self, variant: str, label: str, reference: str) -> dict[str, Any] | None:
        """Return the paired difference in PSNR to the reference with one call."""
        other = (reference, "1 calls")
        if (*other, "psnr") not in self._sums or variant == WITHOUT_MODEL or (variant, label) == other:
            return None
        own = self._average(variant, label, "psnr")
        difference = estimate_difference(own, self._average(*other, "psnr"))
        return vars(difference.at(n=len(own.total)))


def collect_results(folder: Path, *, reference: str) -> dict[str, Any]:
    """Return the scores of a folder as plain numbers, with differences to the reference variant."""
    runs = Runs(folder)
    names = ("variant", "seed", "seconds", "parameters", "device", "reduced_loss")
    results: dict[str, Any] = {
        "runs": [{name: note[name] for name in names} for note in runs.notes],
        "rows": list(runs.rows(reference)),
    }
    sized = [(run["parameters"], run["reduced_loss"]) for run in results["runs"] if run["reduced_loss"]]
    if len({size for size, _ in sized}) > 2:
        results["scaling"] = fit_power_law(sized)
    return results


def fit_power_law(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Fit log loss = a + slope · log weights by least squares; a network size is one point, its mean loss."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for size, loss in points:
        by_size[size].append(loss)
    x = np.log([*by_size])
    y = np.log([np.mean(losses) for losses in by_size.values()])
    return {
        "sizes": {str(size): losses for size, losses in sorted(by_size.items())},
        "slope": float(np.polyfit(x, y, 1)[0]),
        "pearson": float(np.corrcoef(x, y)[0, 1]),
    }
