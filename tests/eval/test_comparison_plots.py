"""Tests for eval/compare/plots.py, with invented numbers."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from nsde_policy.errors import MissingDependencyError
from nsde_policy.eval.compare.plots import (
    choose_styles,
    draw_comparison,
    draw_costs,
    draw_scores,
    draw_sweeps,
)
from nsde_policy.eval.disturbances import Condition
from tests.helpers.comparisons import INVENTED, make_comparison, make_entry, make_full_comparison

FIGURES = {"scores", "score_vs_calls", "score_vs_latency", "chunk", "demos", "robustness"}


def list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_names_of_a_file_are_no_formulas(tmp_path: Path):
    entries = make_entry(r"a $\frac{$", title=r"a $\frac{$"), make_entry("knn")
    draw_comparison(msgspec.structs.replace(make_full_comparison(), entries=entries), tmp_path)
    assert r"a $\frac{$" in (tmp_path / "scores.svg").read_text()


@pytest.mark.slow
def test_all_figures_are_written(tmp_path: Path):
    full = make_full_comparison()
    shown = ("neural_sde", "diffusion, DDPM-100", "diffusion, DDIM-10", "regression", "knn")
    entries = tuple(each for each in full.entries if each.name in shown)
    written = draw_comparison(msgspec.structs.replace(full, entries=entries), tmp_path)
    assert {path.name for path in written} == list_names(tmp_path)
    assert list_names(tmp_path) == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    text = (tmp_path / "scores.svg").read_text()
    assert all(label in text for label in ("Neural SDE", "Diffusion Policy, DDIM-10", "Nearest neighbours"))


def test_figures_have_reproducible_bytes(tmp_path: Path):
    rows = make_comparison(make_entry(), make_entry("flow"))
    first, second = (
        {path.name: path.read_bytes() for path in draw_comparison(rows, tmp_path / name)} for name in "ab"
    )
    assert {"scores.svg", "scores.png", "score_vs_calls.svg", "score_vs_calls.png"} <= first.keys()
    assert first == second


def test_figures_without_data_are_left_out(tmp_path: Path):
    alone = make_comparison(make_entry(latency_ms=None))
    draw_comparison(alone, tmp_path / "alone")
    assert list_names(tmp_path / "alone") == {"scores.png", "scores.svg"}
    late = make_comparison(*(make_entry(condition=Condition(late)) for late in (1, 3)))
    draw_comparison(late, tmp_path / "late")
    assert list_names(tmp_path / "late") == {"robustness.png", "robustness.svg"}


def test_figures_without_successes_show_the_score_only(tmp_path: Path):
    full = make_full_comparison()
    entries = (
        msgspec.structs.replace(each, episodes=msgspec.structs.replace(each.episodes, success=None))
        for each in full.entries
        if each.name in ("neural_sde", "regression")
    )
    found = msgspec.structs.replace(full, entries=tuple(entries))
    draw_comparison(found, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == FIGURES
    texts = [path.read_text() for path in tmp_path.glob("*.svg")]
    assert all("mean max reward" in text and "success" not in text for text in texts)


def test_a_repeated_path_is_drawn_without_interval():
    entry = make_entry()
    repeated = msgspec.structs.replace(entry.episodes, path=(0,) * len(entry.episodes))
    for episodes, has_interval in ((entry.episodes, True), (repeated, False)):
        rows = make_comparison(msgspec.structs.replace(entry, episodes=episodes))
        figure = draw_scores(rows, choose_styles(rows, None))
        ends = [np.ptp(line.get_xdata()) for axis in figure.axes for line in axis.lines]
        assert (max(ends) > 0) == has_interval


def test_rows_without_a_cost_are_named_below_the_axis():
    rows = make_comparison(
        make_entry(), make_entry("flow"), msgspec.structs.replace(make_entry("knn"), calls_per_chunk=0.0)
    )
    figure = draw_costs(rows, choose_styles(rows, None), "calls")
    assert figure is not None
    assert figure.axes[1].get_xlabel().endswith("without Nearest neighbours: no calls")


@pytest.mark.parametrize(("calls", "marks"), [((4, 8), [5, 10]), ((2, 400), [10, 100])])
def test_axis_of_costs_has_marks_between_powers_of_ten(calls: tuple[float, float], marks: list[float]):
    entries = (make_entry(), make_entry("flow"))
    named = (msgspec.structs.replace(e, calls_per_chunk=c) for e, c in zip(entries, calls, strict=True))
    rows = make_comparison(*named)
    figure = draw_costs(rows, choose_styles(rows, None), "calls")
    assert figure is not None
    low, high = figure.axes[0].get_xlim()
    assert [mark for mark in figure.axes[0].get_xticks() if low <= mark <= high] == pytest.approx(marks)


def test_legends_name_every_row_once_with_the_reference_in_bold():
    rows = make_full_comparison()
    styles = choose_styles(rows, None)
    sweeps = draw_sweeps(rows, styles, ["chunk", "push"], ["success"])
    for figure in (draw_costs(rows, styles, "latency"), sweeps):
        assert figure is not None
        (legend,) = figure.legends
        texts = {text.get_text().replace("\n", " "): text.get_fontweight() for text in legend.get_texts()}
        assert len(texts) == len(legend.get_texts()) >= 3
        assert [label for label, weight in texts.items() if weight == "bold"] == ["Neural SDE"]


def test_every_row_has_its_own_style():
    styles = choose_styles(make_full_comparison(), "knn")
    assert len({(style.colour, style.marker) for style in styles.values()}) == len(INVENTED)
    assert [name for name, style in styles.items() if style.bold] == ["knn"]


def test_missing_matplotlib_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match="nsde-policy\\[plot\\]"):
        draw_comparison(make_full_comparison(), tmp_path)
