"""Tests for eval/compare/plots.py, with invented numbers."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from nsde_policy.errors import MissingDependencyError
from nsde_policy.eval.compare.plots import draw_comparison, draw_latency
from tests.helpers.comparisons import make_comparison, make_entry, make_full_comparison


def list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_all_figures_are_written(tmp_path: Path):
    full = make_full_comparison()
    shown = ("neural_sde", "diffusion, DDIM-10", "regression", "knn")
    entries = tuple(each for each in full.entries if each.name in shown)
    odd = make_entry(r"a $\frac{$", title=r"a $\frac{$")  # a name is no formula
    written = draw_comparison(msgspec.structs.replace(full, entries=(*entries, odd)), tmp_path)
    assert {path.name for path in written} == list_names(tmp_path)
    assert list_names(tmp_path) == {"score_vs_latency.png", "score_vs_latency.svg"}
    text = (tmp_path / "score_vs_latency.svg").read_text()
    labels = ("Neural SDE", "Diffusion Policy, DDIM-10", "Nearest neighbours", r"a $\frac{$")
    assert all(label in text for label in labels)


def test_figures_without_data_are_left_out(tmp_path: Path):
    assert draw_comparison(make_comparison(make_entry(latency_ms=None)), tmp_path) == []


def test_a_repeated_path_is_drawn_without_interval():
    entries = [make_entry(), make_entry("knn")]
    for path, has_interval in ((None, True), ((0,) * len(entries[0].episodes), False)):
        changed = (
            msgspec.structs.replace(each, episodes=msgspec.structs.replace(each.episodes, path=path))
            for each in entries
        )
        rows = make_comparison(*changed)
        figure = draw_latency(rows)
        bars = [bar for axis in figure.axes for lines in axis.collections for bar in lines.get_segments()]
        assert (max(np.ptp(bar[:, 1]) for bar in bars) > 0) == has_interval


def test_the_legend_names_every_row_once_with_the_reference_in_bold():
    rows = make_full_comparison()
    figure = draw_latency(rows)
    assert figure is not None
    (legend,) = figure.legends
    texts = {text.get_text().replace("\n", " "): text.get_fontweight() for text in legend.get_texts()}
    assert len(texts) == len(legend.get_texts()) >= 3
    assert [label for label, weight in texts.items() if weight == "bold"] == ["Neural SDE"]


def test_missing_matplotlib_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*matplotlib"):
        draw_comparison(make_full_comparison(), tmp_path)
