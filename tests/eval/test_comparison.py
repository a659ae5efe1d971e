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
from nsde_policy.eval.compare.entries import Entry, Episodes
from nsde_policy.eval.compare.files import merge_comparisons, read_comparison
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.compare.table import format_comparison
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.rollout import EpisodeResult
from nsde_policy.eval.statistics import NO_DIFFERENCE, mcnemar, mean, paired_difference, proportion
from tests.helpers.comparisons import (
    STARTS,
    make_comparison,
    make_entry,
    make_episodes,
    make_full_comparison,
)

ALL = make_full_comparison()


def test_comparison_survives_a_file(tmp_path: Path):
    (tmp_path / "comparison.json").write_text(ALL.to_json())
    assert read_comparison(tmp_path / "comparison.json") == ALL


def test_file_holds_the_documented_keys():
    values = json.loads(
        make_comparison(make_entry(), make_entry("knn", train_s=None, latency_ms=None)).to_json()
    )
    assert [values[k] for k in ("format", "task", "env_kwargs", "seeds")] == [
        2, "pusht", {"reset_rule": "benchmark"}, [100000, 100059],
    ]  # fmt: skip
    first, second = values["entries"]
    assert first["condition"] == {"latency_steps": 0, "obs_noise": 0.0, "push": 0.0}
    assert first["latency_ms"] == {"median": 6.0, "p99": 7.8}
    assert (second["train_s"], second["latency_ms"]) == (None, None)
    coverage = first["episodes"].pop("metrics")["final_coverage"]
    assert {len(column) for column in [coverage, *first["episodes"].values()]} == {len(STARTS)}


def test_200_episodes_take_less_than_12_kB():
    starts = range(100_000, 100_200)
    big = Comparison(
        "pusht",
        {"reset_rule": "benchmark"},
        (starts[0], starts[-1]),
        {},
        (make_entry(episodes=make_episodes(0.5, 0, starts)),),
    )
    assert len(big.to_json()) < 12_000


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.booleans(), st.floats(0, 1), st.integers(0, 300)),
        min_size=1,
        max_size=len(STARTS),
    )
)
def test_any_episodes_survive_a_file(rows: list[tuple[float, bool, float, int]]):
    results = [
        EpisodeResult(STARTS[i], won, reward, {"final_coverage": cover}, None, steps, 1, 8, 8, 0.1)
        for i, (reward, won, cover, steps) in enumerate(rows)
    ]
    kept = Episodes.from_results(reversed(results))
    assert kept.score == pytest.approx([row[0] for row in rows], abs=1e-5)
    assert kept.success == tuple(row[1] for row in rows)
    there = make_comparison(make_entry(episodes=kept))
    assert msgspec.json.decode(there.to_json(), type=Comparison) == there


def test_first_success_of_episodes_that_go_on_survives_a_file():
    played = [EpisodeResult(STARTS[i], i > 0, 1.0, {}, None, 200, 1, 8, 8, 0.1) for i in range(3)]
    assert Episodes.from_results(played).success_step is None
    kept = Episodes.from_results([*played[:2], replace(played[2], success_step=47)])
    assert (kept.steps, kept.success_step) == ((200, 200, 200), (None, 200, 47))
    there = make_comparison(make_entry(episodes=kept))
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
        ("[" * 100_000, "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "not a comparison: it has no 'format'"),
        (damaged(format=3), "has format 3; this version reads formats 1 and 2"),
        (damaged(format=None), "has format None; this version reads formats 1 and 2"),
        (damaged(env_kwargs=[1]), "Expected `object`, got `array` - at `\\$.env_kwargs`"),
        (damaged(task=KeyError), "missing required field `task`"),
        (damaged(extra=1), "unknown field `extra`"),
        (damaged(seeds=[1, 2, 3]), "length 2, got 3 - at `\\$.seeds`"),
        (damaged(seeds=[5, 2]), "invalid range of seeds, 5 to 2"),
        (damaged(seeds=[0, 10]), "seeds outside 0 to 10"),
        (damaged(entries={}), "Expected `array`, got `object` - at `\\$.entries`"),
        (damaged(entries=[]), "at least one entry"),
        (damaged(entries=[3]), "Expected `object`, got `int` - at `\\$.entries\\[0\\]`"),
        (damaged(machine={"torch": 2}), "Expected `str`, got `int` - at `\\$.machine"),
        (damaged(entries__0__name=""), "length >= 1 - at `\\$.entries\\[0\\].name`"),
        (damaged(entries__0__chunk=KeyError), "missing required field `chunk` - at `\\$.entries\\[0\\]`"),
        (damaged(entries__0__chunk=8.5), "Expected `int`, got `float` - at .*chunk`"),
        (damaged(entries__0__demos=0), "Expected `int` >= 1 - at .*demos`"),
        (damaged(entries__0__parameters=-1), "Expected `int` >= 0 - at .*parameters`"),
        (damaged(entries__0__train_s="long"), "Expected `float \\| null`, got `str` - at .*train_s`"),
        (damaged(entries__0__train_s=float("nan")), "NaN is not a finite number"),
        (damaged(entries__0__latency_ms={"median": 1}), "missing required field `p99`"),
        (damaged(entries__0__condition__push=-1.0), "Expected `float` >= 0.0 - at .*push`"),
        (damaged(entries__0__condition__wind=1.0), "no setting 'wind'"),
        (damaged(entries__0__episodes__steps=[1]), "columns must have the same length"),
        (damaged(entries__0__episodes__success=[1] * 60), "Expected `bool`, got `int`"),
        (damaged(entries__0__episodes__metrics={"a": [1.5]}), "columns must have the same length"),
        (damaged(entries__0__episodes__score=[float("nan")] * 60), "NaN is not a finite"),
        (damaged(entries__0__episodes__score=[float("inf")] * 60), "Infinity is not a finite"),
        (damaged(entries__0__episodes__seed=[7] * 60), "ascending order"),
    ],
)
def test_damaged_file_is_rejected(tmp_path: Path, text: str, message: str):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ComparisonError, match=message) as caught:
        read_comparison(tmp_path / "x.json")
    assert "x.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def make_format_1(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as files of format 1 held it."""
    values = json.loads(comparison.to_json()) | {"format": 1}
    values["reset_rule"] = values.pop("env_kwargs").get("reset_rule", "benchmark")
    for entry in values["entries"]:
        episodes = entry["episodes"]
        episodes["max_reward"] = episodes.pop("score")
        episodes["final_coverage"] = episodes.pop("metrics").get("final_coverage")
    return values


def test_format_1_is_still_read(tmp_path: Path):
    file, values = tmp_path / "old.json", make_format_1(ALL)
    file.write_text(json.dumps(values))
    assert read_comparison(file) == ALL
    del values["entries"][0]["episodes"]["max_reward"]
    file.write_text(json.dumps(values))
    with pytest.raises(ComparisonError, match="missing required field `score`"):
        read_comparison(file)
    file.write_text(json.dumps(make_format_1(without_success(make_entry())) | {"task": "none"}))
    assert read_comparison(file).env_kwargs == {}, "only tasks with several rules used the reset rule"


def without_success(*entries: Entry) -> Comparison:
    """Compare entries in an environment that does not report successes; scores are returns below 0."""
    changed = []
    for entry in entries:
        score = tuple(round(1000 * value - 1000, 5) for value in entry.episodes.score)
        episodes = msgspec.structs.replace(entry.episodes, score=score, success=None, metrics={})
        changed.append(msgspec.structs.replace(entry, episodes=episodes))
    return msgspec.structs.replace(make_comparison(*changed), task="Pendulum-v1", env_kwargs={"g": 9.8})


def test_without_successes_the_score_decides(tmp_path: Path):
    found = without_success(make_entry("knn"), make_entry(), make_entry(train_seed=1))
    (tmp_path / "x.json").write_text(found.to_json())
    assert read_comparison(tmp_path / "x.json") == found
    text = format_comparison(found)
    assert text.startswith("Pendulum-v1, g=9.8 seeds 100000 to 100059; ")
    assert "uccess" not in text
    assert "McNemar" not in text
    heads = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| m")]
    assert heads[0][1:5] == ["mean return", "mean steps", "episodes", "by training seed"]
    assert heads[1] == ["minus Neural SDE", "mean return", "mean return: verdict"]
    ours, theirs = found.main_rows()
    assert (ours.label, ours.success) == ("Neural SDE", None)
    assert cells(text, "**Neural SDE**")[1:4] == [str(ours.score), str(ours.steps), "120"]
    assert cells(text, "Nearest neighbours", table=1)[-1] == "Neural SDE ahead"
    assert theirs.difference(ours, "score").high < 0


def test_few_seeds_show_no_difference_of_scores():
    entries = (
        msgspec.structs.replace(each, episodes=make_episodes(skill, 0, STARTS[:5]))
        for each, skill in ((make_entry(), 1.0), (make_entry("knn"), 0.0))
    )
    found = without_success(*entries)
    assert found.main_rows()[1].difference(found.reference(), "score").high < 0
    assert cells(format_comparison(found), "Nearest neighbours", table=1)[-1] == NO_DIFFERENCE


def test_missing_or_binary_file_is_rejected(tmp_path: Path):
    with pytest.raises(ComparisonError, match="No such file"):
        read_comparison(tmp_path / "x.json")
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ComparisonError, match="not valid JSON"):
        read_comparison(tmp_path / "x.json")


def test_trainings_are_pooled_and_averaged_per_seed():
    ours = [make_entry(train_seed=seed) for seed in (0, 1, 2)]
    theirs = [make_entry("flow", train_seed=seed) for seed in (0, 2, 3)]
    found = make_comparison(*ours, *theirs)
    a, b = (found.rows[each[0].setting] for each in (ours, theirs))
    won = np.array([e.episodes.success for e in ours])
    assert a.success == proportion(int(won.sum()), won.size)
    assert a.score == mean([r for e in ours for r in e.episodes.score])
    assert a.means_by_seed("success") == {seed: float(won[seed].mean()) for seed in (0, 1, 2)}
    mean_over_trainings = won.mean(0), np.mean([e.episodes.success for e in theirs], axis=0)
    assert a.difference(b, "success") == paired_difference(*mean_over_trainings)
    assert a.difference(b, "success").n == len(STARTS)
    common = mcnemar(
        ours[0].episodes.success + ours[2].episodes.success,
        theirs[0].episodes.success + theirs[1].episodes.success,
    )
    assert a.mcnemar(b) == common


def test_without_common_training_seeds_only_the_interval_decides():
    a, b = make_entry(train_seed=0), make_entry("knn", train_seed=5)
    found = make_comparison(a, b)
    assert found.rows[a.setting].mcnemar(found.rows[b.setting]) is None
    assert "Neural SDE ahead" in format_comparison(found)


def test_sweeps_start_from_the_base_setting():
    assert ALL.base_setting("neural_sde") == ("neural_sde", 8, 206, 0, 0, 0)
    assert list(ALL.sweep("chunk")) == ["neural_sde", "diffusion, DDPM-100", "regression"]
    assert list(ALL.sweep("chunk")["regression"]) == [1, 2, 4, 8]
    assert list(ALL.sweep("demos")["neural_sde"]) == [10, 25, 50, 100, 206]
    assert list(ALL.sweep("latency_steps")["neural_sde"]) == [0, 1, 2, 4, 8]
    assert list(ALL.sweep("push")["neural_sde"]) == [0, 25, 50]
    assert len(ALL.main_rows()) == 10
    assert ALL.other_rows() == []
    both = make_comparison(
        make_entry(), make_entry(chunk=4, demos=10), make_entry(condition=Condition(1, 1.0))
    )
    assert [row.first.demos for row in both.other_rows()] == [10, 206]
    assert all(both.sweep(axis) == {} for axis in ("chunk", "demos", "obs_noise"))


def cells(text: str, label: str, *, table: int = 0) -> list[str]:
    """Return the cells of a row in the first or a later table that has it."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in lines[table].strip("|").split("|")]


def test_tables_show_scores_costs_and_differences():
    text = format_comparison(ALL)
    ours, theirs = cells(text, "**Neural SDE**"), cells(text, "Diffusion Policy, DDPM-100")
    assert ours[5:] == ["8", "346 k", "61 s", "6 (7.8)"]
    assert theirs[5:] == ["100", "65 M", "61 s", "3800 (4940)"]
    reference, row = ALL.reference(), ALL.rows[ALL.base_setting("diffusion, DDPM-100")]
    assert theirs[1:4] == [str(row.success), str(row.score), "120"]
    assert theirs[4] == ", ".join(f"{share:.3f}" for share in row.means_by_seed("success").values())
    difference, test = row.difference(reference, "success"), row.mcnemar(reference)
    assert test is not None
    found = cells(text, "Diffusion Policy, DDPM-100", table=1)
    assert found[1].startswith(f"{difference.value:+.3f} [".replace("-", "−"))
    assert found[3:] == [f"{test.only_a} : {test.only_b}", f"{test.p:.3f}", NO_DIFFERENCE]
    assert cells(text, "Nearest neighbours", table=1)[-1] == "Neural SDE ahead"
    assert "paired bootstrap over seeds" in text
    for title in ("T_a)", "Number of demonstrations", "come late", "Noise on observations", "Block pushed"):
        assert title in text


def test_rows_are_sorted_and_differences_are_row_minus_reference():
    text = format_comparison(ALL, reference="knn")
    labels = [line.split("|")[1].strip() for line in text.split("\n\n")[1].splitlines()[2:]]
    assert labels[0] == "Neural SDE"
    assert labels[-1] == "**Nearest neighbours**"
    assert cells(text, "Neural SDE", table=1)[1].startswith("+0.7")
    assert cells(text, "Neural SDE", table=1)[-1] == "Neural SDE ahead"


def test_tables_of_one_row_and_of_disturbances_only():
    alone = format_comparison(make_comparison(make_entry("knn")))
    assert "**Nearest neighbours**" in alone
    assert "Differences" not in alone.splitlines()
    disturbed = make_comparison(*(make_entry(condition=Condition(late)) for late in (1, 2)))
    assert "come late" in format_comparison(disturbed)
    with pytest.raises(ComparisonError, match="a reference needs an undisturbed one"):
        format_comparison(disturbed, reference="neural_sde")


def test_settings_that_differ_between_rows_are_columns():
    text = format_comparison(
        make_comparison(make_entry(), make_entry("knn", demos=100), make_entry("lstm_gmm", chunk=1))
    )
    assert "| episodes | demonstrations | T_a |" in text
    assert cells(text, "LSTM-GMM")[4:6] == ["206", "1"]


def test_unknown_reference_is_rejected_and_available_ones_are_listed():
    with pytest.raises(ComparisonError, match=r"no row 'bert' to refer to; available: .*'bet'"):
        format_comparison(ALL, reference="bert")


def shorter(e: Entry) -> Entry:
    return msgspec.structs.replace(e, episodes=make_episodes(0.5, 0, STARTS[:50]))


def test_rows_on_different_seeds_are_rejected():
    mixed = make_comparison(make_entry(), shorter(make_entry("knn")))
    with pytest.raises(ComparisonError, match="different seeds, 50 from 100000 to 100049 and 60 from"):
        format_comparison(mixed)
    with pytest.raises(ComparisonError, match=r"trainings of 'neural_sde' .* different seeds"):
        format_comparison(make_comparison(make_entry(), shorter(make_entry(train_seed=1))))


def test_indistinguishable_entries_are_rejected():
    with pytest.raises(ComparisonError, match="occurs twice"):
        make_comparison(make_entry(), make_entry())
    with pytest.raises(ComparisonError, match="differ in their sampling: use different names"):
        make_comparison(make_entry(), make_entry(train_seed=1, sampling={"alpha": 0.1}))


def test_comparisons_with_the_same_seeds_are_merged():
    a, b = (
        make_comparison(make_entry(), make_entry("knn")),
        make_comparison(make_entry("knn"), make_entry("flow")),
    )
    both = merge_comparisons([a, msgspec.structs.replace(b, machine={"play": "a chair", "torch": "0.0"})])
    assert both.names == ["neural_sde", "knn", "flow"]
    assert both.machine == {"train": "an abacus", "play": "a table and a chair", "torch": "0.0"}
    assert merge_comparisons([a]) == a


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            msgspec.structs.replace(ALL, env_kwargs={"reset_rule": "gym_pusht"}),
            'different environment arguments do not mix: {"reset_rule": "benchmark"} and .*--env-kwargs',
        ),
        (msgspec.structs.replace(ALL, task="none"), "different tasks"),
        (
            msgspec.structs.replace(ALL, seeds=(0, 200_000)),
            "different ranges of seeds do not mix: 100000 to 100059 and 0 to 2",
        ),
        (make_comparison(make_entry(skill=0.1)), "two different results of 'neural_sde', training seed 0"),
    ],
)
def test_different_comparisons_are_not_merged(other: Comparison, message: str):
    with pytest.raises(ComparisonError, match=message):
        merge_comparisons([ALL, other])
