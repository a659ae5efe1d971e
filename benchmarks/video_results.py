"""Results of benchmarks/video.py: intervals over videos, paired differences, a power law, tables, figures."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.eval.compare.plots import REFERENCE_COLOUR
from nsde_policy.eval.compare.table import format_markdown
from nsde_policy.eval.offline.sums import EpisodeSums, estimate_difference
from nsde_policy.eval.render.plotting import make_figure, plot_style, save_figures
from nsde_policy.eval.statistics import Estimate
from nsde_policy.eval.video.evaluate import BASELINES_OF_VIDEO, VideoRow, VideoScores
from nsde_policy.eval.video.figures import draw_call_curves, draw_frame_curves

FIGURES = ("psnr", "ssim", "motion", "centroid", "lost")
DRAWN_BY_FRAME = ("psnr", "ssim")
"""Figures that are kept frame by frame for long predictions."""
BY_FRAME = "frames"
"""End of the names of arrays with figures frame by frame."""
SHORT, LONG = 12, 36
"""Frames to predict."""
DISTANCE = "physics distance"
NO_MODEL, REPEATED = "no model", next(iter(BASELINES_OF_VIDEO))
METHODS = ("Neural SDE", "Flow Matching", "PFI")
UNROLLED = ", unrolled"
TWO_PHASES = (f"Flow Matching{UNROLLED}", f"PFI{UNROLLED}")
"""Variants of the other methods that have a second phase as well."""
CURVES = {
    "Neural SDE": "Neural SDE",
    **{name: name.replace(UNROLLED, ", two phases") for name in TWO_PHASES},
    **{name: f"{name}, one phase" for name in METHODS[1:]},
}
"""Titles of variants in the figure by network calls."""
CHANGES = {
    "default, first phase": "none",
    "no noise injection": "no noise, no denoiser",
    "settings of the paper, same network": "all settings of the paper",
}
"""Titles of variants of the ablation, as in docs/video.md, if they are not their names."""
OURS = f"1 calls, {SHORT} frames"
"""How the Neural SDE predicts."""
REFERENCES = {"methods": "Neural SDE", "ablation": "default, first phase"}
"""Variant of each experiment whose predictions with one call the others are compared with."""
T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""97.5 % quantiles of Student's t for 1 to 15 degrees of freedom; above, 2."""


class Runs:
    """Scores of all runs of an output folder."""

    def __init__(self, folder: Path, *, by_frame: bool = False) -> None:
        self.folder = folder
        self.notes: list[dict[str, Any]] = []
        self._sums: dict[tuple[str, str, str], list[EpisodeSums]] = defaultdict(list)
        for file in sorted(folder.glob("*/*.npz")):
            with np.load(file) as arrays:
                note = json.loads(str(arrays["note"]))
                self.notes.append(note)
                for key in arrays.files:
                    if key == "note" or key.endswith(BY_FRAME) != by_frame:
                        continue
                    label, name = key.removesuffix(f"/{BY_FRAME}").rsplit("/", 1)
                    is_model = not label.startswith(tuple(BASELINES_OF_VIDEO))
                    found = self._sums[note["variant"] if is_model else NO_MODEL, label, name]
                    if is_model or not found:
                        found.append(EpisodeSums(*arrays[key].astype(np.float64)))

    def pool(self, variant: str, label: str, figure: str) -> EpisodeSums:
        """Return the sums over all seeds of a variant, video by video."""
        seeds = self._sums[variant, label, figure]
        return EpisodeSums(sum(s.total for s in seeds), sum(s.count for s in seeds))  # type: ignore[arg-type]

    def average(self, variant: str, label: str, figure: str) -> EpisodeSums:
        """Return the mean sums over all seeds of a variant, video by video."""
        pooled, seeds = self.pool(variant, label, figure), len(self._sums[variant, label, figure])
        return EpisodeSums(pooled.total / seeds, pooled.count / seeds)

    def find_row(self, variant: str, label: str) -> VideoRow | None:
        """Return the figures of a prediction over all seeds, None if it was not scored."""
        found = [name for name in FIGURES if (variant, label, name) in self._sums]
        sums = {name: self.pool(variant, label, name) for name in found}
        wide = {
            n: EpisodeSums(s.total.reshape(len(s.total), -1), s.count.reshape(len(s.count), -1))
            for n, s in sums.items()
        }
        return VideoRow(wide) if wide else None

    def rows(self) -> Iterable[dict[str, Any]]:
        """Return the figures of each variant and trial with intervals over videos, and of each seed."""
        for variant, label in dict.fromkeys((v, t) for v, t, _ in self._sums):
            figures = {}
            for name in FIGURES:
                seeds = self._sums[variant, label, name]
                pooled = self.pool(variant, label, name).estimate().at(n=len(seeds[0].total))
                figures[name] = {**vars(pooled), "seeds": [float(each.compute()) for each in seeds]}
            frames = [
                row["per_frame"]
                for note in self.notes
                if variant in (note["variant"], NO_MODEL)
                for row in note["trials"]
                if row["label"] == label
            ]
            means = {name: np.mean([f[name] for f in frames], axis=0).round(4).tolist() for name in FIGURES}
            distances = [
                row["distance"]
                for note in self.notes
                if variant in (note["variant"], NO_MODEL)
                for row in note["trials"]
                if row["label"] == label and row.get("distance") is not None
            ]
            yield {
                "variant": variant,
                "trial": label,
                **figures,
                "per_frame": means,
                "distance": float(np.mean(distances)) if distances else None,
                "difference": self.compare(variant, label),
            }

    def compare(self, variant: str, label: str) -> dict[str, Any] | None:
        """Return the paired difference in PSNR to the reference of the experiment over as many frames."""
        experiment = next((note["experiment"] for note in self.notes if note["variant"] == variant), "")
        reference = (
            REFERENCES.get(experiment, ""),
            next(f"1 calls, {steps} frames" for steps in (SHORT, LONG) if f"{steps} frames" in label),
        )
        if (*reference, "psnr") not in self._sums or (variant, label) == reference:
            return None
        own, other = (self.average(*each, "psnr") for each in ((variant, label), reference))
        return vars(estimate_difference(own, other).at(n=len(own.total)))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        keep = (
            "experiment",
            "variant",
            "seed",
            "seconds",
            "parameters",
            "device",
            "reduced_loss",
            "latency_ms",
        )
        runs = [{name: note[name] for name in keep} for note in self.notes]
        found: dict[str, Any] = {"runs": runs, "rows": list(self.rows())}
        sized = [(run["parameters"], run["reduced_loss"]) for run in runs if run["reduced_loss"]]
        if len({size for size, _ in sized}) > 2:
            found["scaling"] = fit_power_law(sized)
        return found


def fit_power_law(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Fit log loss = a + slope · log weights by least squares, with 95 % intervals of slope and Pearson's r.

    The interval of the slope is Student's t, that of r Fisher's z; both count one point per network size, the
    mean over its seeds.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for size, loss in points:
        by_size[size].append(loss)
    x = np.log([*by_size])
    y = np.log([np.mean(losses) for losses in by_size.values()])
    n, spread = len(x), x - x.mean()
    slope = float(spread @ y / (spread @ spread))
    error = y - y.mean() - slope * spread
    std = float(np.sqrt(error @ error / (n - 2) / (spread @ spread)))
    reach = (T_QUANTILES[n - 3] if n - 3 < len(T_QUANTILES) else 2.0) * std
    r = float(np.corrcoef(x, y)[0, 1])
    z = 1.96 / np.sqrt(n - 3) if n > 3 else np.inf
    ends = np.tanh(np.arctanh(r) + np.array([-z, z]))
    return {
        "sizes": {str(size): losses for size, losses in sorted(by_size.items())},
        "slope": vars(Estimate(slope, slope - reach, slope + reach, n)),
        "pearson": vars(Estimate(r, float(ends[0]), float(ends[1]), n)),
    }


def format_results(results: Mapping[str, Any]) -> str:
    """Format the results as Markdown tables."""

    def cell(row: Mapping[str, Any], name: str) -> str:
        return str(Estimate(**{key: row[name][key] for key in ("value", "low", "high", "n")}))

    has_distance = any(row["distance"] is not None for row in results["rows"])
    head = [
        "model",
        "prediction",
        "seeds",
        "PSNR, dB",
        "PSNR of each seed",
        "paired difference",
        "first frame",
        "lost colour",
        "SSIM",
        "motion",
        "centroid, px",
        *([DISTANCE] if has_distance else []),
    ]
    lines = [
        [
            row["variant"], re.sub(r"\b1 calls", "1 call", row["trial"]), str(len(row["psnr"]["seeds"])),
            cell(row, "psnr"),
            ", ".join(f"{value:.2f}" for value in row["psnr"]["seeds"]),
            cell(row, "difference") if row["difference"] else "", f"{row['per_frame']['psnr'][0]:.1f}",
            cell(row, "lost"),
            cell(row, "ssim"), cell(row, "motion"), cell(row, "centroid"),
            *([f"{row['distance']:.3f}" if row["distance"] is not None else ""] if has_distance else []),
        ]
        for row in results["rows"]
    ]  # fmt: skip
    tables = [format_markdown(head, lines)]
    runs = [
        [run["variant"], str(run["seed"]), f"{run['seconds']:.0f}" if run["seconds"] else "",
         f"{run['parameters'] / 1e6:.2f}",
         f"{run['reduced_loss']:.4f}" if run["reduced_loss"] else "",
         ", ".join(f"{name} {ms:.2f}" for name, ms in (run["latency_ms"] or {}).items()), run["device"]]
        for run in results["runs"]
    ]  # fmt: skip
    head = ["run", "seed", "seconds", "million weights", "reduced loss", "ms per call, batch 1", "device"]
    tables.append(format_markdown(head, runs))
    if "scaling" in results:
        law = results["scaling"]
        tables.append(f"slope {cell(law, 'slope')}, Pearson's r {cell(law, 'pearson')}")
    return "\n\n".join(tables)


def draw_figures(runs: Runs, out: Path) -> None:
    """Draw calls per frame, long predictions, the ablation and the scaling law, as far as there are runs."""
    out.mkdir(parents=True, exist_ok=True)
    _draw_calls_of_methods(runs, out)
    _draw_long_predictions(runs, out)
    results = runs.to_dict()
    _draw_ablation([note["variant"] for note in runs.notes if note["experiment"] == "ablation"], results, out)
    if "scaling" in results:
        draw_scaling(results["scaling"], out)


def _draw_calls_of_methods(runs: Runs, out: Path) -> None:
    curves: dict[str, dict[int, VideoRow]] = defaultdict(dict)
    for variant, title in CURVES.items():
        for calls in (1, 2, 5, 10, 20):
            if (row := runs.find_row(variant, f"{calls} calls, {SHORT} frames")) is not None:
                curves[title][calls] = row
    baselines = {name: runs.find_row(NO_MODEL, f"{name}, {SHORT} frames") for name in BASELINES_OF_VIDEO}
    if curves:
        known = {name: row for name, row in baselines.items() if row is not None}
        solid = {CURVES[name.removesuffix(UNROLLED)]: CURVES[name] for name in TWO_PHASES}
        draw_call_curves(curves, out, baselines=known, name="video_calls", dashed=solid)


def _draw_long_predictions(runs: Runs, out: Path) -> None:
    by_frame = Runs(runs.folder, by_frame=True)
    wanted = {
        "Neural SDE, 1 call": ("Neural SDE", f"1 calls, {LONG} frames"),
        "Flow Matching, 2 calls": (TWO_PHASES[0], f"2 calls, {LONG} frames"),
        "PFI, 1 call": (TWO_PHASES[1], f"1 calls, {LONG} frames"),
        **{name: (NO_MODEL, f"{name}, {LONG} frames") for name in BASELINES_OF_VIDEO},
    }
    rows = {title: by_frame.find_row(*key) for title, key in wanted.items()}
    found = {title: row for title, row in rows.items() if row is not None}
    if found:
        videos = len(next(iter(found.values())).sums["psnr"].total)
        draw_frame_curves(
            VideoScores(4, LONG, videos, videos, found), out, figures=DRAWN_BY_FRAME, name="video_frames"
        )


def _draw_ablation(variants: Sequence[str], results: Mapping[str, Any], out: Path) -> None:
    """Draw PSNR and SSIM of each variant with one call; dashed lines repeat the last frame."""
    rows = [row for row in results["rows"] if row["variant"] in variants and row["trial"] == OURS]
    if not rows:
        return
    rows = sorted(rows, key=lambda row: -row["psnr"]["value"])
    frozen = next(row for row in results["rows"] if row["trial"] == f"{REPEATED}, {SHORT} frames")
    with plot_style():
        figure, axes = make_figure(1, 2, (6.4, 0.3 * len(rows) + 0.7), sharey=True)
        for axis, name in zip(axes[0], ("psnr", "ssim"), strict=True):
            value, low, high = (
                np.array([row[name][end] for row in rows]) for end in ("value", "low", "high")
            )
            axis.errorbar(
                value, np.arange(len(rows)), xerr=np.stack([value - low, high - value]), fmt="o", ms=4,
                capsize=2, color=REFERENCE_COLOUR,
            )  # fmt: skip
            axis.axvline(frozen[name]["value"], ls="--", lw=0.9, color="#777777", zorder=1)
            axis.set_xlabel({"psnr": "PSNR over 12 frames, dB", "ssim": "SSIM"}[name])
        axes[0, 0].set_yticks(range(len(rows)), [CHANGES.get(row["variant"], row["variant"]) for row in rows])
        axes[0, 0].set_ylabel("change")
        axes[0, 0].invert_yaxis()
        save_figures({"video_ablation": figure}, out)


def draw_scaling(law: Mapping[str, Any], out: Path) -> None:
    """Draw the reduced loss against the number of weights with the fitted power law."""
    sizes = np.array([int(size) for size in law["sizes"]])
    means = np.array([np.mean(losses) for losses in law["sizes"].values()])
    slope, r = law["slope"]["value"], law["pearson"]["value"]
    line = np.exp(np.log(means).mean() + slope * (np.log(sizes) - np.log(sizes).mean()))
    with plot_style():
        figure, axes = make_figure(1, 1, (3.6, 2.7))
        for size, losses in zip(sizes, law["sizes"].values(), strict=True):
            axes[0, 0].plot([size] * len(losses), losses, "o", ms=3.5, color=REFERENCE_COLOUR)
        axes[0, 0].plot(sizes, line, "--", lw=1, color="#777777", label=f"slope {slope:.3f}, r = {r:.3f}")
        axes[0, 0].set(xscale="log", yscale="log", xlabel="weights", ylabel="reduced loss on held-out videos")
        axes[0, 0].legend(frameon=False)
        save_figures({"video_scaling": figure}, out)
