"""Tests for eval/compare/entries.py, eval/compare/result.py and eval/compare/table.py, with invented numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.entries import Entry, Episodes
from nsde_policy.eval.compare.result import Comparison, merged, read_comparison
from nsde_policy.eval.compare.table import table
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.paired import NO_DIFFERENCE, mcnemar, paired_difference
from nsde_policy.eval.rollout import EpisodeResult
from nsde_policy.eval.statistics import mean, proportion
from tests.helpers.comparisons import STARTS, comparison, entry, episodes, everything

ALL = everything()


def test_a_comparison_is_the_same_after_writing_and_reading(tmp_path: Path):
    (tmp_path / "comparison.json").write_text(ALL.to_json())
    assert read_comparison(tmp_path / "comparison.json") == ALL


def test_the_file_is_the_object_it_is_said_to_be():
    values = json.loads(comparison(entry(), entry("knn", train_s=None, latency_ms=None)).to_json())
    assert [values[k] for k in ("format", "task", "reset_rule", "seeds")] == [
        1, "pusht", "benchmark", [100000, 100059],
    ]  # fmt: skip
    first, second = values["entries"]
    assert first["condition"] == {"latency_steps": 0, "obs_noise": 0.0, "push": 0.0}
    assert first["latency_ms"] == {"median": 6.0, "p99": 7.8}
    assert (second["train_s"], second["latency_ms"]) == (None, None)
    assert {len(column) for column in first["episodes"].values()} == {len(STARTS)}


def test_two_hundred_episodes_take_little_room():
    starts = range(100_000, 100_200)
    big = Comparison(
        "pusht", "benchmark", (starts[0], starts[-1]), {}, (entry(episodes=episodes(0.5, 0, starts)),)
    )
    assert len(big.to_json()) < 12_000


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.booleans(), st.floats(0, 1), st.integers(0, 300)),
        min_size=1,
        max_size=len(STARTS),
    )
)
def test_any_episodes_survive_the_file(rows: list[tuple[float, bool, float, int]]):
    results = [
        EpisodeResult(STARTS[i], won, reward, {"final_coverage": cover}, None, steps, 1, 8, 8, 0.1)
        for i, (reward, won, cover, steps) in enumerate(rows)
    ]
    kept = Episodes.of(reversed(results))
    assert kept.max_reward == pytest.approx([row[0] for row in rows], abs=1e-5)
    assert kept.success == tuple(row[1] for row in rows)
    there = comparison(entry(episodes=kept))
    assert Comparison.from_json(there.to_json()) == there


def damaged(**changes: Any) -> str:
    values = json.loads(comparison(entry()).to_json())
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
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a comparison"),
        ("{}", "not a comparison"),
        (damaged(format=2), "another format than 1"),
        (damaged(format=None), "another format than 1"),
        (damaged(task=KeyError), "a comparison lacks 'task'"),
        (damaged(extra=1), "'extra', which means nothing"),
        (damaged(seeds=[1, 2, 3]), "first and the last"),
        (damaged(seeds=[5, 2]), "starts from 5 to 2 are none"),
        (damaged(seeds=[0, 10]), "outside 0 to 10"),
        (damaged(entries={}), "entries must be list"),
        (damaged(entries=[]), "at least one entry"),
        (damaged(entries=[3]), "entry 0: an entry must be an object"),
        (damaged(machine={"torch": 2}), "machine must hold strings"),
        (damaged(entries__0__name=""), "entry 0: an entry needs a name"),
        (damaged(entries__0__chunk=KeyError), "entry 0: an entry lacks 'chunk'"),
        (damaged(entries__0__chunk=8.5), "chunk must be int"),
        (damaged(entries__0__demos=0), "need demos, chunk >= 1"),
        (damaged(entries__0__parameters=-1), "must not be negative"),
        (damaged(entries__0__train_s="long"), "train_s must be a number"),
        (damaged(entries__0__train_s=float("nan")), "train_s must be a number"),
        (damaged(entries__0__latency_ms={"median": 1}), "latency_ms lacks 'p99'"),
        (damaged(entries__0__condition__push=-1.0), "push >= 0"),
        (damaged(entries__0__condition__wind=1.0), "no setting 'wind'"),
        (damaged(entries__0__episodes__steps=[1]), "are no episodes"),
        (damaged(entries__0__episodes__success=[1] * 60), "success must hold bool only"),
        (damaged(entries__0__episodes__max_reward=[1.5] * 60), "max_reward holds numbers outside 0 to 1"),
        (damaged(entries__0__episodes__max_reward=[float("nan")] * 60), "outside 0 to 1"),
        (damaged(entries__0__episodes__seed=[7] * 60), "must rise"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ComparisonError, match=message) as refusal:
        read_comparison(tmp_path / "x.json")
    assert "x.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_is_refused_too(tmp_path: Path):
    with pytest.raises(ComparisonError, match="No such file"):
        read_comparison(tmp_path / "x.json")
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ComparisonError, match="no text"):
        read_comparison(tmp_path / "x.json")


def test_trainings_are_pooled_and_averaged_start_by_start():
    ours = [entry(train_seed=seed) for seed in (0, 1, 2)]
    theirs = [entry("flow", train_seed=seed) for seed in (0, 2, 3)]
    found = comparison(*ours, *theirs)
    a, b = (found.rows[each[0].setting] for each in (ours, theirs))
    won = np.array([e.episodes.success for e in ours])
    assert a.success == proportion(int(won.sum()), won.size)
    assert a.reward == mean([r for e in ours for r in e.episodes.max_reward])
    assert a.success_by_seed == {seed: float(won[seed].mean()) for seed in (0, 1, 2)}
    mean_over_trainings = won.mean(0), np.mean([e.episodes.success for e in theirs], axis=0)
    assert a.difference(b, "success") == paired_difference(*mean_over_trainings)
    assert a.difference(b, "success").n == len(STARTS)
    common = mcnemar(
        ours[0].episodes.success + ours[2].episodes.success,
        theirs[0].episodes.success + theirs[1].episodes.success,
    )
    assert a.mcnemar(b) == common


def test_without_common_training_seeds_there_is_no_test_but_an_interval():
    a, b = entry(train_seed=0), entry("knn", train_seed=5)
    found = comparison(a, b)
    assert found.rows[a.setting].mcnemar(found.rows[b.setting]) is None
    assert "Neural SDE ahead" in table(found)


def test_variations_start_from_home():
    assert ALL.home("neural_sde") == ("neural_sde", 8, 206, Condition())
    assert list(ALL.sweep("chunk")) == ["neural_sde", "diffusion, DDPM-100", "regression"]
    assert list(ALL.sweep("chunk")["regression"]) == [1, 2, 4, 8]
    assert list(ALL.sweep("demos")["neural_sde"]) == [10, 25, 50, 100, 206]
    assert list(ALL.sweep("latency_steps")["neural_sde"]) == [0, 1, 2, 4, 8]
    assert list(ALL.sweep("push")["neural_sde"]) == [0, 25, 50]
    assert len(ALL.main_rows()) == 10
    assert ALL.other_rows() == []
    both = comparison(entry(), entry(chunk=4, demos=10), entry(condition=Condition(1, 1.0)))
    assert [row.setting.demos for row in both.other_rows()] == [10, 206]
    assert all(both.sweep(axis) == {} for axis in ("chunk", "demos", "obs_noise"))


def cells(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_says_what_there_is_to_say():
    text = table(ALL)
    ours, theirs = cells(text, "**Neural SDE**"), cells(text, "Diffusion Policy, DDPM-100")
    assert ours[1:5] == ["8", "346 k", "61 s", "6 (7.8)"]
    assert theirs[1:5] == ["100", "65 M", "61 s", "3800 (4940)"]
    reference, row = ALL.reference(), ALL.rows[ALL.home("diffusion, DDPM-100")]
    assert theirs[5:8] == [str(row.reward), str(row.success), "120"]
    assert theirs[8] == ", ".join(f"{share:.3f}" for share in row.success_by_seed.values())
    difference, test = row.difference(reference, "success"), row.mcnemar(reference)
    assert theirs[10].startswith(f"{difference.value:+.3f} [".replace("-", "−"))
    assert test is not None
    assert theirs[11] == f"{test.p:.3f} ({test.only_a} : {test.only_b})"
    assert (ours[-1], theirs[-1]) == ("reference", NO_DIFFERENCE)
    assert cells(text, "Nearest neighbours")[-1] == "Neural SDE ahead"
    assert "paired bootstrap over starts" in text
    for title in ("T_a)", "Number of demonstrations", "come late", "Noise on observations", "Block pushed"):
        assert title in text


def test_rows_are_sorted_and_signs_are_those_of_the_row_less_the_reference():
    text = table(ALL, reference="knn")
    labels = [line.split("|")[1].strip() for line in text.split("\n\n")[1].splitlines()[2:]]
    assert labels[0] == "Neural SDE"
    assert labels[-1] == "**Nearest neighbours**"
    assert cells(text, "Neural SDE")[10].startswith("+0.7")
    assert cells(text, "Neural SDE")[-1] == "Neural SDE ahead"


def test_a_table_of_one_row_and_one_of_troubles_only():
    assert cells(table(comparison(entry("knn"))), "**Nearest neighbours**")[-1] == "reference"
    troubled = comparison(*(entry(condition=Condition(late)) for late in (1, 2)))
    assert "come late" in table(troubled)
    with pytest.raises(ComparisonError, match="nothing to refer to"):
        table(troubled, reference="neural_sde")


def test_what_differs_between_rows_is_a_column():
    text = table(comparison(entry(), entry("knn", demos=100), entry("lstm_gmm", chunk=1)))
    assert "| method | demonstrations | T_a |" in text
    assert cells(text, "LSTM-GMM")[1:3] == ["206", "1"]


def test_a_reference_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ComparisonError, match=r"no row 'bert' to refer to; there are: .*'bet'"):
        table(ALL, reference="bert")


def shorter(e: Entry) -> Entry:
    return replace(e, episodes=episodes(0.5, 0, STARTS[:50]))


def test_rows_on_different_starts_are_not_compared():
    mixed = comparison(entry(), shorter(entry("knn")))
    with pytest.raises(ComparisonError, match="different starts, 50 from 100000 to 100049 and 60 from"):
        table(mixed)
    with pytest.raises(ComparisonError, match="trainings of 'neural_sde' were played on different starts"):
        table(comparison(entry(), shorter(entry(train_seed=1))))


def test_entries_that_cannot_be_told_apart_are_refused():
    with pytest.raises(ComparisonError, match="there twice"):
        comparison(entry(), entry())
    with pytest.raises(ComparisonError, match="differ in their sampling: give each its own name"):
        comparison(entry(), entry(train_seed=1, sampling={"alpha": 0.1}))


def test_comparisons_merge_where_they_are_alike():
    a, b = comparison(entry(), entry("knn")), comparison(entry("knn"), entry("flow"))
    both = merged([a, replace(b, machine={"play": "a chair", "torch": "0.0"})])
    assert both.names == ["neural_sde", "knn", "flow"]
    assert both.machine == {"train": "an abacus", "play": "a table and a chair", "torch": "0.0"}
    assert merged([a]) == a


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            replace(ALL, reset_rule="gym_pusht"),
            "different reset rules do not mix: 'benchmark' and 'gym_pusht'",
        ),
        (replace(ALL, task="none"), "different tasks"),
        (
            replace(ALL, seeds=(0, 200_000)),
            "different ranges of starts do not mix: 100000 to 100059 and 0 to 2",
        ),
        (comparison(entry(skill=0.1)), "two different results of 'neural_sde', training seed 0"),
    ],
)
def test_what_is_unlike_does_not_merge(other: Comparison, message: str):
    with pytest.raises(ComparisonError, match=message):
        merged([ALL, other])
