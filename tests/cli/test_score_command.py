"""Tests for `nsde-policy score`: flags, tables, and comparisons of runs on recorded episodes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.errors import ComparisonError
from nsde_policy.eval.score.comparison import ScoreComparison, compare_scores
from nsde_policy.eval.score.result import Score
from nsde_policy.eval.score.scorer import ScoreConfig
from nsde_policy.eval.statistics import EpisodeSums
from tests.helpers.demo_stores import write_store
from tests.helpers.robot_arm import write_arm_store
from tests.helpers.toy_problems import make_robot_demos


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return two runs that held out the same episodes, and their store."""
    folder = tmp_path_factory.mktemp("two")
    write_arm_store(folder / "robot.zarr", replace(make_robot_demos(8, 15), rate_hz=20), angles=(2,))
    common = ["train", "--demos", str(folder / "robot.zarr"), "--task", "none", "--validation", "0.5"]
    common += ["--train.steps", "10", "--train.batch-size", "16", "--select", "none", "--device", "cpu"]
    sde = ["--model.network.width", "16", "--chunk", "4", "--out", str(folder / "sde")]
    assert main([*common, *sde]) == 0
    window = ["--policy", "regression", "--preset", "fast", "--chunk", "2"]
    assert main([*common, *window, "--out", str(folder / "regression")]) == 0
    return folder / "sde", folder / "regression", folder / "robot.zarr"


def test_command_prints_tables_and_writes_json(
    two_runs: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run, _, store = two_runs
    file = tmp_path / "score.json"
    flags = ["--samples", "5", "--horizon", "5", "--verbose", "--json", str(file)]
    assert main(["score", str(run), "--demos", str(store), *flags]) == 0
    text = capsys.readouterr().out
    assert text.startswith("cannot tell, because only 4 of these episodes were held out of the training")
    titles = "in nats", "repeat the last action", "linear model", "h = 5", "coverage", "roughness"
    for words in ("the 4 of 8 episodes", *titles):
        assert words in text
    values = json.loads(file.read_text())
    assert len(values["episodes"]) == 4
    assert values["verdict"]["outlook"] == "cannot tell"
    assert values["roughness"] > 0
    assert not values["seen_in_training"]
    assert np.shape(values["error_per_action"]["sample"]["value"]) == (5, 3)
    assert np.shape(values["coverage"]["observations"]["low"]) == (3,)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--demos", "STORE", "--push", "7"], "Unrecognized options: --push"),
        (["--stride", "2"], "--demos"),
        (["--demos", "STORE", "--horizon", "0"], "need --horizon >= 1"),
        (["--demos", "STORE", "--horizon", "100000"], "the longest episode has"),
        (["--demos", "missing.zarr"], "missing.zarr"),
        (["--demos", "OTHER"], "holds: ctrl; the run was trained on the observations state"),
        (["--demos", "WIDE"], "observations of 5 and actions of 3 numbers, the run was trained on 4 and 3"),
        (["--demos", "FAST"], "recorded at 40 Hz, the run was trained at 20 Hz"),
    ],
)
def test_command_explains_flags_and_stores_that_do_not_fit(
    two_runs: tuple[Path, Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    words: str,
):
    run, _, store = two_runs
    places = {"STORE": store, "OTHER": tmp_path / "other.zarr"}
    places["WIDE"] = write_arm_store(tmp_path / "wide.zarr", make_robot_demos(1, obs_dim=5))
    fast = replace(make_robot_demos(3, 15), rate_hz=40)
    places["FAST"] = write_arm_store(tmp_path / "fast.zarr", fast, angles=(2,))
    names = ("data/state", "data/action", "data/keypoint", "data/img")
    write_store(tmp_path / "other.zarr", {**dict.fromkeys(names), "data/ctrl": np.ones((40, 2))})
    assert main(["score", str(run), *(str(places.get(flag, flag)) for flag in flags)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "--obs-keys" not in said


@pytest.fixture(scope="module")
def comparison(two_runs: tuple[Path, Path, Path]) -> ScoreComparison:
    return compare_scores(two_runs[:2], two_runs[2], config=ScoreConfig(samples=4))


def test_runs_are_compared_on_the_episodes_that_all_held_out(comparison: ScoreComparison):
    sde, regression = comparison.runs
    held_out = list(sde.record.demos.held_out)
    assert sde.context["episodes"] == regression.context["episodes"] == held_out
    assert len(held_out) == 4
    assert comparison.note.endswith("4 episodes of " + sde.record.demos.source + ", unseen in training")
    own, other = sde.error("sample").pool(1), regression.error("sample")[:, :8].pool(1)
    found = regression.difference(sde, "error")
    assert found is not None
    assert found.n == 4
    assert found.value == pytest.approx(float(other.compute() - own.compute()))
    assert regression.difference(sde, "log_prob_action") is None
    values = json.loads(comparison.to_json())
    assert values["differences"][0]["error"]["value"] == pytest.approx(found.value)
    assert [run["horizon"] for run in values["runs"]] == [8, 8]  # chunks of 4 and 2 actions
    assert "on at least 6 episodes; fewer give no verdict" in comparison.as_text()


def test_runs_are_ranked_by_error_if_the_paired_interval_excludes_zero(comparison: ScoreComparison):
    def scale(factor: float, label: str) -> Score:
        run, sums = comparison.reference, comparison.reference.sums
        squared = sums["error_sample"]
        total, count = (np.tile(part, (3, 1, 1)) for part in (factor * squared.total, squared.count))
        parts = {**sums, "error_sample": EpisodeSums(total, count, root=True)}
        return replace(run, name=label, sums=parts)

    small, large = scale(1.0, "small"), scale(1.44, "large")
    assert large.decide(small) == small.decide(large) == "small ahead"
    assert small.decide(small) == "no difference shown"


def test_runs_that_held_out_different_episodes_cannot_be_paired(two_runs: tuple[Path, Path, Path]):
    sde, _, store = two_runs
    record = json.loads((sde / "config.json").read_text())
    held_out = record["demos"]["held_out"]
    record["demos"]["held_out"] = [i for i in range(8) if i not in held_out]
    record["seed"] += 1
    other = Path(shutil.copytree(sde, sde.parent / "other"))
    (other / "config.json").write_text(json.dumps(record))
    with pytest.raises(ComparisonError, match="same --seed and --validation"):
        compare_scores([sde, other], store)


def test_command_compares_several_runs(
    two_runs: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    *runs, store = map(str, two_runs)
    file = tmp_path / "scores.json"
    flags = ["--demos", store, "--samples", "2"]
    assert main(["score", *runs, *flags, "--json", str(file)]) == 0
    assert "| minus Neural SDE, sde | error |" in capsys.readouterr().out
    assert [len(values["error_in_std"]) for values in json.loads(file.read_text())["runs"]] == [4, 4]
    assert main(["score", *runs, *flags, "--report", str(tmp_path / "page.html")]) == 2
    assert "--report shows the plans of one run" in capsys.readouterr().err
    assert main(["compare", *runs, "--out", str(tmp_path)]) == 2
    assert "score recorded episodes with `nsde-policy score " in capsys.readouterr().err
