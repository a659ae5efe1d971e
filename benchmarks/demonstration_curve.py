"""Draw docs/images/demonstrations.png: success on Meta-World over the number of demonstrations.

python benchmarks/demonstration_curve.py out/metaworld_demonstrations/results.json [--out docs/images]
"""

import argparse
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import msgspec
from result_tables.demonstrations import estimate_curves
from robustness import (
    MARKERS,
    REFERENCE_COLOUR,
    ROW_COLOURS,
    draw_estimate,
    encode_figure,
    make_figure,
    plot_style,
)

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.files import read_json

STATE = ", full state"
"""End of the names of methods that see the full state."""
PANELS = {"one camera": "", "full state": STATE}
DODGE = 1.035
"""Factor between the places of two methods, so that their intervals do not hide each other."""


def draw_curves(comparisons: Mapping[str, Comparison]) -> bytes:
    """Draw one panel per kind of observation: mean success over all tasks, with intervals, as a PNG file."""
    curves = estimate_curves([*comparisons.values()])
    names = list(dict.fromkeys(label.removesuffix(STATE) for label in curves))
    counts = sorted({count for curve in curves.values() for count in curve})
    with plot_style():
        figure, axes = make_figure(1, len(PANELS), (7.4, 2.6), sharey=True)
        for panel, (title, ending) in zip(axes[0], PANELS.items(), strict=True):
            styles = zip(chain([REFERENCE_COLOUR], ROW_COLOURS), chain("o", MARKERS), strict=False)
            for i, (name, (colour, marker)) in enumerate(zip(names, styles, strict=False)):
                curve = dict(sorted(curves.get(name + ending, {}).items()))
                places = [count * DODGE ** (i - (len(names) - 1) / 2) for count in curve]
                panel.plot(places, [each.value for each in curve.values()], color=colour, linewidth=1.0)
                for place, each in zip(places, curve.values(), strict=True):
                    draw_estimate(panel, place, each, colour, marker)
                panel.plot([], [], f"{marker}-", color=colour, label=name)
            panel.set_xscale("log")
            panel.set_xticks(counts, map(str, counts))
            panel.set_xticks([], minor=True)
            panel.set_ylim(-0.03, 1.03)
            panel.grid(axis="y", color="#E0E0E0", linewidth=0.5)
            panel.set_title(title)
            panel.set_xlabel("demonstrations")
        axes[0, 0].set_ylabel(f"success, mean of {len(comparisons)} tasks")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=7.5)
        return encode_figure(figure, "png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json that the experiment wrote")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    stored = read_json(args.results, error=ComparisonError)
    comparisons = {task: msgspec.convert(each, Comparison) for task, each in stored.items()}
    (args.out / "demonstrations.png").write_bytes(draw_curves(comparisons))


if __name__ == "__main__":
    main()
