"""Tests for entries.py, result.py and table.py of eval/compare, with invented numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.result import Comparison, merge_comparisons, read_comparison
from nsde_policy.eval.compare.table import format_comparison
from nsde_policy.eval.rollouts.episode import EpisodeResult, tabulate_results
from nsde_policy.eval.statistics import NO_DIFFERENCE, mean, paired_difference, proportion
from tests.helpers.comparisons import (
    STARTS,
    make_comparison,
    make_entry,
    make_episodes,
    make_full_comparison,
    without_success,
)

ALL = make_full_comparison()


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.booleans(), st.floats(0, 1), st.integers(0, 300), st.booleans()),
        min_size=1,
        max_size=len(STARTS),
    )
)
def test_any_episodes_survive_a_file(rows: list[tuple[float, bool, float, int, bool]]):
    results = [
        EpisodeResult(STARTS[i], won, reward, {"final_coverage": cover}, steps, 1, 8, 8, 0.1)
        for i, (reward, won, cover, steps, _) in enumerate(rows)
    ]
    early = [
        replace(result, success_step=result.steps // 2) if goes_on else result
        for result, (*_, goes_on) in zip(results, rows, strict=True)
    ]
    columns = tabulate_results(reversed(early))
    assert columns.score == pytest.approx([row[0] for row in rows], abs=1e-5)
    assert columns.success == tuple(row[1] for row in rows)
    assert (columns.success_step or columns.steps)[0] in (None, early[0].steps_to_success, early[0].steps)
    seeds = (columns.seed[0], columns.seed[-1])
    there = msgspec.structs.replace(ALL, seeds=seeds, entries=(make_entry(episodes=columns),))
    assert msgspec.json.decode(there.to_json(), type=Comparison) == there


def damaged(**changes: Any) -> str:
    values = json.loads(make_comparison(make_entry()).to_json())
    for path, value in changes.items():
        *parents, last = path.split("__")
        at: Any = values
        for parent in parents:
            at = at[int(parent) if parent.isdigit() else parent]
        if value is KeyError:
            del at[last]
        else:
            at[last] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        (damaged(format=3), "Invalid value 3 - at `\\$.format`"),
        (damaged(entries=[]), "at least one entry"),
        (damaged(entries__0__chunk=KeyError), "missing required field `chunk` - at `\\$.entries\\[0\\]`"),
        (damaged(entries__0__episodes__seed=[7] * 60), "other seeds than 100000 to 100059"),
    ],
)
def test_damaged_file_is_rejected(tmp_path: Path, text: str, message: str):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ComparisonError, match=message) as caught:
        read_comparison(tmp_path / "x.json")
    assert "x.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_successes_the_score_decides(tmp_path: Path):
    found = without_success(make_entry(), make_entry("knn"), make_entry(train_seed=1))
    (tmp_path / "x.json").write_text(found.to_json())
    assert read_comparison(tmp_path / "x.json") == found
    text = format_comparison(found)
    assert text.startswith("Pendulum-v1, g=9.8 seeds 100000 to 100059; ")
    assert "uccess" not in text
    heads = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| m")]
    assert heads[0][1:5] == ["mean return", "mean steps", "episodes", "by training seed"]
    assert heads[1] == ["minus Neural SDE", "mean return", "mean return: verdict"]
    ours, theirs = found.rows
    assert (ours.label, ours.success) == ("Neural SDE", None)
    assert cells(text, "**Neural SDE**")[1:4] == [str(ours.score), str(ours.steps), "120"]
    assert cells(text, "Nearest neighbours", table=1)[-1] == "Neural SDE ahead"
    assert theirs.difference(ours, "score").high < 0


def test_trainings_are_pooled_and_averaged_per_seed():
    ours = [make_entry(train_seed=seed) for seed in (0, 1, 2)]
    theirs = [make_entry("flow", train_seed=seed) for seed in (0, 2, 3)]
    a, b = make_comparison(*ours, *theirs).rows
    won = np.array([e.episodes.success for e in ours])
    assert a.success == proportion(int(won.sum()), won.size)
    assert a.score == mean([r for e in ours for r in e.episodes.score])
    assert a.means_by_seed("success") == {seed: float(won[seed].mean()) for seed in (0, 1, 2)}
    mean_over_trainings = won.mean(0), np.mean([e.episodes.success for e in theirs], axis=0)
    assert a.difference(b, "success") == paired_difference(*mean_over_trainings)
    assert a.difference(b, "success").n == len(STARTS)


def cells(text: str, label: str, *, table: int = 0) -> list[str]:
    """Return the cells of a row in the first or a later table that has it."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in lines[table].strip("|").split("|")]


def test_tables_show_scores_costs_and_differences():
    text = format_comparison(ALL)
    ours, theirs = cells(text, "**Neural SDE**"), cells(text, "Diffusion Policy, DDPM-100")
    assert ours[5:] == ["8", "346 k", "61 s"]
    assert theirs[5:] == ["100", "65 M", "61 s"]
    reference = ALL.reference
    (row,) = (row for row in ALL.rows if row.first.name == "diffusion, DDPM-100")
    assert theirs[1:4] == [str(row.success), str(row.score), "120"]
    assert theirs[4] == ", ".join(f"{share:.3f}" for share in row.means_by_seed("success").values())
    difference = row.difference(reference, "success")
    found = cells(text, "Diffusion Policy, DDPM-100", table=1)
    assert found[1].startswith(f"{difference.value:+.3f} [".replace("-", "−"))
    assert found[3:] == [NO_DIFFERENCE]
    assert cells(text, "Nearest neighbours", table=1)[-1] == "Neural SDE ahead"
    assert "paired bootstrap over seeds" in text


def test_rows_are_sorted_and_differences_are_row_minus_reference():
    knn_first = sorted(ALL.entries, key=lambda entry: entry.method != "knn")
    text = format_comparison(msgspec.structs.replace(ALL, entries=tuple(knn_first)))
    labels = [line.split("|")[1].strip() for line in text.split("\n\n")[1].splitlines()[2:]]
    assert labels[0] == "Neural SDE"
    assert labels[-1] == "**Nearest neighbours**"
    assert cells(text, "Neural SDE", table=1)[1].startswith("+0.7")
    assert cells(text, "Neural SDE", table=1)[-1] == "Neural SDE ahead"


def test_settings_that_differ_between_rows_are_columns():
    entries = (make_entry(), make_entry("knn", demos=100), make_entry("lstm_gmm", chunk=1))
    text = format_comparison(make_comparison(*entries))
    assert "| episodes | demonstrations | T_a |" in text
    assert cells(text, "LSTM-GMM")[4:6] == ["206", "1"]


def test_entries_that_do_not_fit_together_are_rejected():
    shorter = make_entry("knn", episodes=make_episodes(0.5, 0, STARTS[:50]))
    with pytest.raises(ComparisonError, match="'knn', training seed 0 has other seeds than 100000 to 100059"):
        make_comparison(make_entry(), shorter)
    with pytest.raises(ComparisonError, match="occurs twice"):
        make_comparison(make_entry(), make_entry())


def test_merging_lists_all_entries_and_machines():
    a, b = make_comparison(make_entry()), make_comparison(make_entry("flow"))
    both = merge_comparisons([a, msgspec.structs.replace(b, machine={"play": "a chair", "torch": "0.0"})])
    assert [entry.name for entry in both.entries] == ["neural_sde", "flow"]
    assert both.machine == {"train": "an abacus", "play": "a table and a chair", "torch": "0.0"}
