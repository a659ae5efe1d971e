"""Tests of modes and paths of episodes: what is recorded, counted and estimated."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.errors import ComparisonError, EnvError
from nsde_policy.eval.compare.files import read_comparison
from nsde_policy.eval.compare.path_plots import draw_paths
from nsde_policy.eval.compare.plots import choose_styles, draw_comparison, draw_scores
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.compare.table import format_comparison, format_mode_counts
from nsde_policy.eval.evaluate import EvaluationConfig, evaluate_policy
from nsde_policy.eval.modes import (
    ModeOutcomes,
    compare_diversity,
    compute_entropy,
    estimate_diversity,
)
from nsde_policy.eval.paths import PATH_POINTS, SAME_PATH, number_paths, shorten_path
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.render.plotting import plot_style, pyplot
from nsde_policy.eval.report.collect import ReportRun
from nsde_policy.eval.report.page import format_page
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.scores import score_episodes
from nsde_policy.tasks import GymTask, get_task, read_episode_mode
from nsde_policy.training.run import train_run
from tests.helpers.gates_task import GatesTask, demonstrate_gates


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two trainings of a deterministic policy and a barely trained stochastic one, of the task `gates`."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for name, method, seed in (("knn", "knn", 0), ("knn again", "knn", 1), ("neural_sde", "neural_sde", 0)):
        config = get_task("gates").preset("fast", method)
        config = config.replace_parts(train={"steps": 10, "batch_size": 32})
        found[name] = folder / f"{method}-fast-{seed}"
        train_run(demonstrate_gates(), config, found[name], task="gates", seed=seed)
    return found


def play(run: Path, **env_kwargs: Any) -> list[Any]:
    return list(RolloutPool(run, RolloutConfig(env_kwargs=env_kwargs)).evaluate(range(4)))


def test_mode_and_path_of_every_episode_are_recorded(runs: dict[str, Path]):
    results = play(runs["knn"])
    assert {result.mode for result in results} <= {0, 1, 2}
    assert all(result.path.shape == (PATH_POINTS, 2) and not result.trace.obs for result in results)
    assert all(np.array_equal(result.path[0], (0, 0)) for result in results)
    assert {result.mode for result in play(runs["knn"], mode=-1)} == {-1}
    assert {result.mode for result in play(runs["knn"], mode=np.array([2]))} == {2}


@pytest.mark.parametrize("mode", [3, -2, 1.0, True, "left", np.array([0, 1])])
def test_a_mode_that_the_task_does_not_have_is_an_error(runs: dict[str, Path], mode: Any):
    with pytest.raises(EnvError, match=r"Gates-v0: info\['mode'\] is .*from 0 to 2, or -1"):
        play(runs["knn"], mode=mode)


def test_a_task_without_modes_reads_none():
    assert read_episode_mode(GymTask("Gates-v0"), {"mode": "anything"}) is None


def test_short_paths_are_evenly_spaced_in_time():
    states = np.column_stack([np.arange(101.0), np.arange(101.0) ** 2, np.ones(101)])
    path = shorten_path(list(states), GatesTask())
    assert path.shape == (PATH_POINTS, 2)
    assert path[:, 0] == pytest.approx(np.linspace(0, 100, PATH_POINTS))
    assert np.array_equal(path[[0, -1]], states[[0, -1], :2])
    assert shorten_path(list(states[:1]), GymTask("Gates-v0")).shape == (PATH_POINTS, 3)


def is_same(path: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.abs(path - other).max() <= SAME_PATH)


def test_paths_within_a_thousandth_of_the_extent_are_the_same():
    line = np.linspace([0.0, 0.0], [100.0, 1.0], PATH_POINTS)
    up, right = (np.array(shift) * SAME_PATH for shift in ([0.0, 1.0], [100.0, 0.0]))
    assert number_paths([line, line + 0.4 * up, line + 0.4 * right]) == (0, 0, 0)
    assert number_paths([line, line + 2 * up, line + 2 * right, line]) == (0, 1, 2, 0)
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(20, PATH_POINTS, 3)).cumsum(axis=1)[rng.integers(0, 20, 150)]
    drawn += 0.004 * rng.normal(size=drawn.shape)  # of the order of the tolerance
    scaled = drawn / np.ptp(drawn, axis=(0, 1))
    expected: list[int] = []
    for i, path in enumerate(scaled):
        earlier = [n for n, other in zip(expected, scaled, strict=False) if is_same(path, other)]
        firsts = {n: expected.index(n) for n in earlier}
        same = [n for n, first in firsts.items() if is_same(path, scaled[first])]
        expected.append(min(same) if same else max(expected[:i], default=-1) + 1)
    assert number_paths(drawn) == tuple(expected)
    assert number_paths([np.zeros((PATH_POINTS, 2)), np.full((PATH_POINTS, 2), 1e-12)]) == (0, 0)


def make_outcomes(mode: Sequence[int], success: Sequence[bool] | None = None, **columns: Any) -> ModeOutcomes:
    return ModeOutcomes.from_columns(24, mode, success, columns.get("path"))


def test_entropy_of_known_counts():
    assert compute_entropy(np.full(24, 7), corrected=False) == pytest.approx(1.0)
    assert compute_entropy(np.eye(24)[3] * 90) == 0.0
    assert compute_entropy(np.zeros(24)) == 0.0
    halves = np.array([10, 10, 0, 0])
    assert compute_entropy(halves, corrected=False) == pytest.approx(0.5)
    assert compute_entropy(halves) == pytest.approx(0.5 + 1 / (2 * 20 * np.log(4)))


def test_only_successes_of_known_mode_count_for_entropy():
    outcomes = make_outcomes([0, 0, 1, 1, 2, -1], [True, True, True, True, False, True])
    assert outcomes.counts.tolist() == [2, 2, *[0] * 22]
    assert outcomes.unknown == 1
    assert outcomes.plain_entropy == pytest.approx(np.log(2) / np.log(24))
    corrected = (np.log(2) + 1 / 8) / np.log(24)
    found = estimate_diversity([outcomes], n=6)
    assert found.entropy.value == pytest.approx(corrected)
    assert found.product.value == pytest.approx(5 / 6 * corrected)


def test_intervals_cover_the_true_entropy():
    rng, p = np.random.default_rng(0), np.array([0.4, 0.3, 0.2, 0.1, *[0.0] * 20])
    truth = float(compute_entropy(p * 1e9, corrected=False))
    drawn = [rng.choice(24, 120, p=p) for _ in range(40)]
    won = [rng.random(120) < 0.8 for _ in drawn]
    found = [estimate_diversity([make_outcomes(m, s)], n=120) for m, s in zip(drawn, won, strict=True)]
    covered = sum(each.entropy.low <= truth <= each.entropy.high for each in found)
    assert covered >= 33  # of 40; about 37 are expected
    assert sum(each.product.low <= 0.8 * truth <= each.product.high for each in found) >= 33
    assert np.mean([each.entropy.value for each in found]) == pytest.approx(truth, abs=0.01)


def test_policies_of_one_mode_each_are_not_diverse():
    trainings = [make_outcomes([mode] * 50) for mode in range(6)]
    assert estimate_diversity(trainings, n=6).entropy.value == 0.0


def test_repeated_paths_are_drawn_together():
    mode = [0, 1, 2, 3] * 30
    alone = estimate_diversity([make_outcomes(mode)], n=120).entropy
    repeated = estimate_diversity([make_outcomes(mode, path=mode)], n=4).entropy
    assert repeated.value == alone.value
    assert repeated.high - repeated.low > 3 * (alone.high - alone.low)


def test_one_distinct_path_of_successes_has_no_interval():
    modes, won = [0, 1, 2, 3], [True, False, False, False]
    found = estimate_diversity([make_outcomes(modes, won)], n=4)
    assert (str(found.entropy), str(found.product)) == ("0.000 [n = 1]", "0.000 [n = 1]")
    repeats = make_outcomes([0, 0, 2, 3], [True, True, False, False], path=[0, 0, 1, 2])
    assert estimate_diversity([repeats], n=3).entropy.n == 1
    assert estimate_diversity([make_outcomes(modes, [False] * 4)], n=4).product.n == 0
    assert estimate_diversity([make_outcomes(modes, [True, True, False, False])], n=4).entropy.n == 4


def test_successes_in_one_mode_do_not_exclude_other_modes():
    others = 1 - 0.05 ** (1 / 20)  # a larger share of others gives 20 successes in one mode in less than 5 %
    shares = np.array([1 - others, *[others / 23] * 23])
    largest = -(shares * np.log(shares)).sum() / np.log(24)
    one = make_outcomes([3] * 25, [True] * 20 + [False] * 5)
    found = estimate_diversity([one], n=25)
    assert (found.entropy.low, found.entropy.value, found.entropy.n) == (0.0, 0.0, 25)
    assert (found.entropy.high, found.product.high) == pytest.approx((largest, 0.8 * largest))
    mean = estimate_diversity([one, make_outcomes([3] * 25, path=[0] * 25)], n=26)
    assert mean.entropy.high == pytest.approx(largest / 2), "a path that repeats adds nothing"
    half = make_outcomes([0] * 12 + [1] * 13)
    certain = make_outcomes([3] * 25, path=[0] * 25)
    plain, wider = (compare_diversity([half], [each], n=25).entropy for each in (certain, one))
    assert (wider.low, wider.high) == pytest.approx((plain.low - largest, plain.high))
    wider = compare_diversity([one], [half], n=25).entropy
    assert (wider.low, wider.high) == pytest.approx((-plain.high, largest - plain.low))


def test_paired_difference_of_equal_policies_is_zero_and_of_others_is_not():
    rng = np.random.default_rng(0)
    many, few = make_outcomes(rng.integers(0, 24, 200)), make_outcomes(rng.integers(0, 4, 200))
    same = compare_diversity([many], [many], n=200)
    assert (same.entropy.low, same.entropy.value, same.entropy.high) == (0.0, 0.0, 0.0)
    other = compare_diversity([many, many], [few], n=200)
    assert 0.4 < other.product.low < other.product.value < other.product.high < 0.7


def test_eval_says_that_a_deterministic_policy_has_one_path(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "scores.json"
    assert main(["eval", str(runs["knn"]), "--episodes", "7", "--workers", "1", "--json", str(out)]) == 0
    text, found = capsys.readouterr().out, json.loads(out.read_text())
    assert "distinct paths    1: episodes repeat paths, so intervals have n = 1 distinct path\n" in text
    assert "success rate      1.000 [n = 1]\n" in text
    assert "distinct modes    1 of 3 in 7 successes\n" in text
    assert "entropy           0.000 [n = 1]" in text
    assert found["success_rate"]["n"] == found["distinct_paths"] == found["entropy"]["n"] == 1
    assert found["successes_by_mode"][found["episodes"][0]["mode"]] == 7


def test_entropy_without_successes_is_unknown(runs: dict[str, Path]):
    failures = [replace(result, success=False) for result in play(runs["knn"])]
    text = score_episodes(failures, GatesTask()).as_text()
    assert "entropy          – (no successes)\n" in text
    assert "success × entropy" not in text


def test_eval_of_a_stochastic_policy_counts_every_episode(runs: dict[str, Path]):
    scores = evaluate_policy(runs["neural_sde"], EvaluationConfig(7, 0), workers=1).scores
    assert scores.distinct_paths == 7
    assert scores.score.n == 7


@pytest.fixture(scope="module")
def compared(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a comparison of three runs of `gates`, two of them of the same method."""
    out = tmp_path_factory.mktemp("compared")
    flags = ["--episodes", "8", "--workers", "1", "--device", "cpu", "--latency-rounds", "0"]
    assert main(["compare", *map(str, runs.values()), *flags, "--out", str(out)]) == 0
    return out


def test_compare_counts_modes_and_paths_of_all_trainings(compared: Path):
    found = read_comparison(compared / "comparison.json")
    text = (compared / "comparison.md").read_text()
    assert "| Nearest neighbours, fast |" in text
    knn, sde = (row for row in sorted(found.main_rows(), key=lambda row: row.first.method))
    assert (knn.distinct_paths, knn.episodes, sde.distinct_paths) == (1, 16, 8)  # both trainings are the same
    assert knn.success is not None
    assert knn.success.n == knn.score.n == 1
    assert format_mode_counts(knn) == "1, 1 of 3"
    assert knn.mcnemar(sde) is None
    assert sde.difference(knn, "success").n == 1
    assert {"paths.png", "paths.svg"} <= {path.name for path in compared.iterdir()}


def test_paths_survive_a_file(compared: Path, runs: dict[str, Path]):
    episodes = read_comparison(compared / "comparison.json").entries[-1].episodes
    pool = RolloutPool(runs["neural_sde"], RolloutConfig())
    played = [result.path for result in pool.evaluate(episodes.seed)]
    unpacked = episodes.unpack_paths()
    assert unpacked is not None
    assert np.abs(unpacked - np.stack(played)).max() < 0.001 * np.ptp(played)
    content = read_comparison(compared / "comparison.json").to_json()
    (compared / "again.json").write_text(content)
    assert read_comparison(compared / "again.json").to_json() == content


def test_entries_without_modes_and_paths_are_still_read(compared: Path, tmp_path: Path):
    values = json.loads((compared / "comparison.json").read_text())
    for entry in values["entries"]:
        for name in ("modes", "mode", "path", "paths"):
            entry["episodes"].pop(name, None)
    old = tmp_path / "old.json"
    old.write_text(json.dumps(values))
    found = read_comparison(old)
    assert found.mode_rows() == []
    assert "Modes" not in format_comparison(found)
    assert {path.stem for path in draw_comparison(found, tmp_path / "plots")} >= {"scores"}
    assert not (tmp_path / "plots/paths.png").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modes": 0}, "below the number of modes 0"),
        ({"mode": [5] * 8}, "below the number of modes 3"),
        ({"mode": [0]}, "columns must have the same length"),
        ({"paths": {"low": [0, 0], "high": [1, 1], "data": "?"}}, "cannot read paths"),
        ({"paths": {"low": [0, 0], "high": [1, 1], "data": "eJwDAAAAAAE="}}, "paths of 8 episodes"),
    ],
)
def test_damaged_modes_and_paths_are_rejected(
    compared: Path, tmp_path: Path, changes: dict[str, Any], message: str
):
    values = json.loads((compared / "comparison.json").read_text())
    values["entries"][0]["episodes"] |= changes
    (tmp_path / "damaged.json").write_text(json.dumps(values))
    with pytest.raises(ComparisonError, match=message):
        format_comparison(read_comparison(tmp_path / "damaged.json"))


def test_report_shows_modes_and_a_picture_of_paths(compared: Path):
    found = read_comparison(compared / "comparison.json")
    page = format_page(found, [ReportRun(entry) for entry in found.entries])
    assert '<a href="#modes">Modes</a>' in page
    assert 'alt="Paths of all episodes by mode' in page
    assert "1 in 16" in page
    assert "succeeds in 100.0 % of its episodes (one distinct path, no interval); against " in page


def test_rules_of_verdicts_are_stated_below_both_tables(compared: Path):
    found = read_comparison(compared / "comparison.json")
    page = format_page(found, [ReportRun(entry) for entry in found.entries])
    for text in ((compared / "comparison.md").read_text(), page):
        assert text.count("at least 6 seeds and 6 distinct paths of both policies") == 2
        assert text.count("a policy whose every training repeats one path has entropy 0") == 2


def fail_all(comparison: Comparison, method: str) -> Comparison:
    """Return a comparison in which all episodes of a method fail."""
    entries = tuple(
        msgspec.structs.replace(
            entry, episodes=msgspec.structs.replace(entry.episodes, success=(False,) * len(entry.episodes))
        )
        if entry.method == method
        else entry
        for entry in comparison.entries
    )
    return msgspec.structs.replace(comparison, entries=entries)


def test_pictures_show_no_entropy_without_successes(compared: Path):
    found = fail_all(read_comparison(compared / "comparison.json"), "knn")
    with plot_style():
        paths, scores = draw_paths(found), draw_scores(found, choose_styles(found, None))
        assert paths is not None
        assert scores is not None
        titles = [axis.get_title() for axis in paths.axes]
        pyplot().close("all")
    assert "Nearest neighbours, fast\nsuccess 0.00, entropy –, 1 path" in titles
    success, entropy, _ = scores.axes
    assert len(success.lines) - len(entropy.lines) == 2  # marker and interval of the row without successes
    assert entropy.get_xlim() == pytest.approx((-0.02, 1.02))


def test_picture_shows_each_distinct_path_once(compared: Path):
    found = read_comparison(compared / "comparison.json")
    with plot_style():
        figure = draw_paths(found)
        assert figure is not None
        drawn = {axis.get_title().split("\n")[0]: axis for axis in figure.axes if axis.get_title()}
        pyplot().close(figure)
    lines = {label: len(axis.collections[0].get_segments()) for label, axis in drawn.items()}
    assert lines == {"Nearest neighbours, fast": 1, "Neural SDE, fast": 8}
    bars = figure.axes[figure.axes.index(drawn["Nearest neighbours, fast"]) + len(drawn)]
    assert sum(bar.get_height() for bar in bars.patches) == 1


def test_long_names_are_wrapped_within_the_picture(compared: Path):
    found = read_comparison(compared / "comparison.json")
    entries = [
        msgspec.structs.replace(entry, name=f"{entry.name} (runs/{entry.method}-of-some-long-name-0)")
        for entry in found.entries
    ]
    with plot_style():
        figure = draw_paths(msgspec.structs.replace(found, entries=tuple(entries)))
        assert figure is not None
        figure.canvas.draw()
        boxes = [axis.title.get_window_extent() for axis in figure.axes if axis.get_title()]
        right = figure.bbox.x1
        pyplot().close(figure)
    assert len(boxes) == 2
    assert all(box.x0 >= 0 and box.x1 <= right for box in boxes)
    assert not boxes[0].overlaps(boxes[1])


def test_bars_are_shares_of_successes_on_one_scale(compared: Path):
    found = read_comparison(compared / "comparison.json")
    modes = {"knn": (3,) * 8, "neural_sde": (0, 1, 1, 1, 2, 2, 5, 5)}
    entries = []
    for entry in found.entries:
        success = (True,) * 7 + (entry.method == "knn",)
        columns = {"modes": 24, "mode": modes[entry.method], "success": success}
        episodes = msgspec.structs.replace(entry.episodes, **columns)
        entries.append(msgspec.structs.replace(entry, episodes=episodes))
    found = msgspec.structs.replace(found, entries=tuple(entries))
    with plot_style():
        figure = draw_paths(found)
        assert figure is not None
        bars = [axis for axis in figure.axes if axis.get_xlabel() == "mode"]
        figure.canvas.draw()
        first, second = (text.get_window_extent() for text in bars[0].texts)
        assert not first.overlaps(second)
        pyplot().close(figure)
    heights = [[bar.get_height() for bar in axis.patches] for axis in bars]
    assert heights[0][:6] == pytest.approx([1 / 7, 3 / 7, 2 / 7, 0, 0, 1 / 7])
    assert heights[1][3] == sum(heights[1]) == 1
    assert [axis.get_ylim() for axis in bars] == [(0, pytest.approx(6 / 24))] * 2
    assert [axis.lines[0].get_ydata()[0] for axis in bars] == [pytest.approx(1 / 24)] * 2
    assert [[text.get_text() for text in axis.texts] for axis in bars] == [["43 %", "29 %"], ["100 %"]]
