"""Draw docs/images/comparison_robustness.png: success on Push-T under disturbances.

python benchmarks/robustness.py [--out docs/images]
"""

import argparse
from itertools import chain, cycle
from pathlib import Path

from nsde_policy.eval.compare.plots import MARKERS, REFERENCE_COLOUR, ROW_COLOURS, draw_estimate
from nsde_policy.eval.compare.result import Comparison, read_comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.render.plotting import make_figure, plot_style, save_figures

RESULT = Path(__file__).parent / "results/pusht.json"
AXIS_LABELS = {
    "latency_steps": "delay of plans, control periods",
    "obs_noise": "observation noise, std of one period's change",
    "push": "push of the block, px",
}


def sweep(comparison: Comparison, axis: str) -> dict[str, dict[float, Row]]:
    """Return rows that differ from the base setting along one axis only, by name and value.

    Includes names with several values and, with demonstrations, those trained only on fewer.
    """
    swept: dict[str, dict[float, Row]] = {}
    most = max(setting.demos for setting in comparison.rows)
    for name in comparison.names:
        base = comparison.base_setting(name)
        rows = {
            getattr(setting, axis): row
            for setting, row in comparison.rows.items()
            if setting._replace(**{axis: getattr(base, axis)}) == base
        }
        if len(rows) > 1 or (axis == "demos" and base.demos < most):
            swept[name] = dict(sorted(rows.items()))
    return swept


def draw_robustness(comparison: Comparison, out: Path) -> None:
    """Draw one panel per disturbance: success against its strength, with intervals."""
    swept = {axis: sweep(comparison, axis) for axis in AXIS_LABELS}
    names = list(dict.fromkeys(name for rows in swept.values() for name in rows))
    colours = dict(zip(names, chain([REFERENCE_COLOUR], cycle(ROW_COLOURS)), strict=False))
    markers = dict(zip(names, chain("o", cycle(MARKERS)), strict=False))
    with plot_style():
        figure, axes = make_figure(1, len(swept), (2.6 * len(swept) + 1.5, 2.5), sharey=True)
        for panel, (axis, by_name) in zip(axes[0], swept.items(), strict=True):
            for name, rows in by_name.items():
                estimates = {value: row.success for value, row in rows.items()}
                values = [each.value for each in estimates.values()]
                panel.plot(list(rows), values, color=colours[name], linewidth=1.0)
                for value, each in estimates.items():
                    draw_estimate(panel, value, each, colours[name], markers[name], "_")
            panel.set_xlabel(AXIS_LABELS[axis])
        axes[0, 0].set_ylabel(comparison.column_title("success"))
        for name, colour in colours.items():
            label = comparison.rows[comparison.base_setting(name)].label
            axes[0, -1].plot([], [], f"{markers[name]}-", color=colour, label=label)
        figure.legend(loc="outside right center", frameon=False, fontsize=6.5)
        save_figures({"comparison_robustness": figure}, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    draw_robustness(read_comparison(RESULT), args.out)


if __name__ == "__main__":
    main()
