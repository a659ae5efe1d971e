"""Draw docs/images/comparison_robustness.png: success on Push-T under disturbances.

python benchmarks/robustness.py [--out docs/images]
"""

import argparse
import sys
from itertools import chain, cycle
from pathlib import Path
from typing import TYPE_CHECKING

from nsde_policy.eval.compare.entries import Setting
from nsde_policy.eval.compare.result import Comparison, read_comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.statistics import Estimate

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from plotting import encode_figure, make_figure, plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REFERENCE_COLOUR = "#0072B2"
ROW_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""Okabe and Ito's colours, safe for colour-blind readers, and a grey."""
MARKERS = "sD^vph<>"
RESULT = Path(__file__).parent / "results/pusht.json"
AXIS_LABELS = {
    "latency_steps": "delay of plans, control periods",
    "obs_noise": "observation noise, std of one period's change",
    "push": "push of the block, px",
}


def base_setting(comparison: Comparison, name: str) -> Setting:
    """Return the setting by which a name is compared: undisturbed, most demonstrations, first."""
    own = [entry.setting for entry in comparison.entries if entry.name == name]
    undisturbed = [setting for setting in own if not any(setting[3:])]
    return max(undisturbed, key=lambda setting: setting.demos)


def list_main_rows(comparison: Comparison) -> list[Row]:
    """Return one row per name, at its base setting, the most successful first."""
    return [row for row in comparison.rows if row.first.setting == base_setting(comparison, row.first.name)]


def sweep(comparison: Comparison, axis: str) -> dict[str, dict[float, Row]]:
    """Return rows that differ from the base setting along one axis only, by name and value.

    Includes names with several values.
    """
    swept: dict[str, dict[float, Row]] = {}
    for name in dict.fromkeys(entry.name for entry in comparison.entries):
        base = base_setting(comparison, name)
        rows = {
            getattr(row.first.setting, axis): row
            for row in comparison.rows
            if row.first.setting._replace(**{axis: getattr(base, axis)}) == base
        }
        if len(rows) > 1:
            swept[name] = dict(sorted(rows.items()))
    return swept


def draw_estimate(axis: "Axes", x: float, score: Estimate, colour: str, marker: str) -> None:
    """Draw a marker at the score and a line over its interval."""
    axis.errorbar(
        x,
        score.value,
        yerr=[[score.value - score.low], [score.high - score.value]],
        fmt=marker,
        color=colour,
        elinewidth=1.0,
        markersize=4.8,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=3,
    )


def draw_robustness(comparison: Comparison, out: Path) -> None:
    """Draw one panel per disturbance: success against its strength, with intervals."""
    swept = {axis: sweep(comparison, axis) for axis in AXIS_LABELS}
    names = list(dict.fromkeys(name for rows in swept.values() for name in rows))
    colours = dict(zip(names, chain([REFERENCE_COLOUR], cycle(ROW_COLOURS)), strict=False))
    markers = dict(zip(names, chain("o", cycle(MARKERS)), strict=False))
    labels = {row.first.name: row.label for row in comparison.rows}
    with plot_style():
        figure, axes = make_figure(1, len(swept), (2.6 * len(swept) + 1.5, 2.5), sharey=True)
        for panel, (axis, by_name) in zip(axes[0], swept.items(), strict=True):
            for name, rows in by_name.items():
                estimates = {value: row.success for value, row in rows.items()}
                values = [each.value for each in estimates.values()]
                panel.plot(list(rows), values, color=colours[name], linewidth=1.0)
                for value, each in estimates.items():
                    draw_estimate(panel, value, each, colours[name], markers[name])
            panel.set_xlabel(AXIS_LABELS[axis])
        axes[0, 0].set_ylabel(comparison.column_title("success"))
        for name, colour in colours.items():
            axes[0, -1].plot([], [], f"{markers[name]}-", color=colour, label=labels[name])
        figure.legend(loc="outside right center", frameon=False, fontsize=6.5)
        (out / "comparison_robustness.png").write_bytes(encode_figure(figure, "png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    draw_robustness(read_comparison(RESULT), args.out)


if __name__ == "__main__":
    main()
