"""Tests for eval/compare/plots.py, with invented numbers."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.errors import MissingDependencyError
from nsde_policy.eval.compare.plots import _apart, _looks, draw_all, draw_costs
from nsde_policy.eval.disturbances import Condition
from tests.helpers.comparisons import MADE_UP, comparison, entry, everything

FIGURES = {"scores", "score_vs_calls", "score_vs_latency", "chunk", "demos", "robustness"}


def drawn(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_everything_is_drawn_and_twice_the_same_byte_for_byte(tmp_path: Path):
    for folder in ("a", "b"):
        written = draw_all(everything(), tmp_path / folder)
        assert {path.name for path in written} == drawn(tmp_path / folder)
    assert drawn(tmp_path / "a") == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    text = (tmp_path / "a" / "scores.svg").read_text()
    assert all(label in text for label in ("Neural SDE", "Diffusion Policy, DDIM-10", "Nearest neighbours"))


def test_only_what_the_entries_hold_is_drawn(tmp_path: Path):
    alone = comparison(entry(latency_ms=None))
    draw_all(alone, tmp_path / "alone")
    assert drawn(tmp_path / "alone") == {"scores.png", "scores.svg"}
    late = comparison(*(entry(condition=Condition(late)) for late in (1, 3)))
    draw_all(late, tmp_path / "late")
    assert drawn(tmp_path / "late") == {"robustness.png", "robustness.svg"}


def test_a_row_without_a_cost_is_named_below_the_axis():
    rows = comparison(entry(), entry("flow"), replace(entry("knn"), calls_per_chunk=0.0))
    figure = draw_costs(rows, _looks(rows, None), "calls")
    assert figure is not None
    assert figure.axes[1].get_xlabel().endswith("without Nearest neighbours: no calls")


def test_names_beside_points_do_not_cover_each_other():
    rows = everything()
    figure = draw_costs(rows, _looks(rows, None), "latency")
    assert figure is not None
    for axis in figure.axes:
        boxes = [text.get_window_extent() for text in axis.texts]
        assert len(boxes) == len(MADE_UP)
        assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_names_at_the_ends_of_lines_keep_their_order_and_their_distance(wanted: list[float]):
    y = np.array(_apart(wanted, [0.1] * len(wanted)))
    order = np.argsort(wanted, kind="stable")
    assert (np.diff(y[order]) > 0.0999).all()
    assert y.mean() == pytest.approx(np.mean(wanted))


def test_every_row_looks_different():
    looks = _looks(everything(), "knn")
    assert len({(look.colour, look.marker) for look in looks.values()}) == len(MADE_UP)
    assert [name for name, look in looks.items() if look.bold] == ["knn"]


def test_a_missing_matplotlib_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match="nsde-policy\\[plot\\]"):
        draw_all(everything(), tmp_path)
