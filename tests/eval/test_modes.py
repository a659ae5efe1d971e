"""Tests of modes of episodes: what is recorded and estimated."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.errors import EnvError
from nsde_policy.eval.compare.result import read_comparison
from nsde_policy.eval.compare.table import format_comparison
from nsde_policy.eval.episodes import Episodes
from nsde_policy.eval.modes import compare_modes, compute_entropy, estimate_modes
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.tasks import get_task
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.train import train_run
from tests.helpers.gates_task import demonstrate_gates


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two trainings of a deterministic policy and a barely trained stochastic one, of the task `gates`."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for name, method, seed in (("knn", "knn", 0), ("knn again", "knn", 1), ("neural_sde", "neural_sde", 0)):
        config = get_task("gates").preset("fast", method)
        config = config.replace_parts(train={"steps": 10, "batch_size": 32})
        found[name] = folder / f"{method}-fast-{seed}"
        train_run(demonstrate_gates(), config, found[name], task="gates", options=TrainOptions(seed=seed))
    return found


def play(run: Path, **env_kwargs: Any) -> list[Any]:
    return list(RolloutPool(run, RolloutConfig(env_kwargs=env_kwargs)).run(range(4)))


def test_the_mode_of_every_episode_is_recorded(runs: dict[str, Path]):
    results = play(runs["knn"])
    assert {result.mode for result in results} <= {0, 1, 2}
    assert not any(result.trace.obs for result in results)
    assert {result.mode for result in play(runs["knn"], mode=-1)} == {-1}
    assert {result.mode for result in play(runs["knn"], mode=np.int64(2))} == {2}


@pytest.mark.parametrize("mode", [3, -2, "left"])
def test_a_mode_that_the_task_does_not_have_is_an_error(runs: dict[str, Path], mode: Any):
    with pytest.raises(EnvError, match=r"Gates-v0: info\['mode'\] is .*from 0 to 2, or -1"):
        play(runs["knn"], mode=mode)


def make_episodes(mode: Sequence[int], success: Sequence[bool] | None = None) -> Episodes:
    """Make episodes of a task with 24 modes; all succeed if `success` is None."""
    n = len(mode)
    won = None if success is None else tuple(map(bool, success))
    modes = tuple(map(int, mode))
    return Episodes(tuple(range(n)), (0.0,) * n, won, {}, (1,) * n, modes=24, mode=modes)


def test_entropy_of_simple_counts():
    assert compute_entropy(np.full(24, 7)) == pytest.approx(1.0)
    assert compute_entropy(np.eye(24)[3] * 90) == 0.0
    assert compute_entropy(np.zeros(24)) == 0.0
    assert compute_entropy(np.array([10, 10, 0, 0])) == pytest.approx(0.5)


def test_intervals_cover_the_true_entropy():
    rng, p = np.random.default_rng(0), np.array([0.4, 0.3, 0.2, 0.1, *[0.0] * 20])
    truth = float(compute_entropy(p))
    modes = [rng.choice(24, 400, p=p) for _ in range(40)]
    success = [rng.random(400) < 0.8 for _ in modes]
    estimates = [estimate_modes([make_episodes(*each)]) for each in zip(modes, success, strict=True)]
    for truth_of, column in ((truth, 0), (0.8 * truth, 1)):
        covered = sum(each[column].low <= truth_of <= each[column].high for each in estimates)
        assert covered >= 33  # of 40; about 37 are expected
    assert np.mean([entropy.value for entropy, _ in estimates]) == pytest.approx(truth, abs=0.01)


def test_trainings_of_one_mode_each_are_not_diverse():
    entropy, product = estimate_modes([make_episodes([0] * 9), make_episodes([1] * 9)])
    assert str(entropy) == str(product) == "0.000 [0.000, 0.000]"


def test_paired_difference_of_equal_policies_is_zero_and_of_others_is_not():
    rng = np.random.default_rng(0)
    many, few = make_episodes(rng.integers(0, 24, 200)), make_episodes(rng.integers(0, 4, 200))
    same = compare_modes([many], [many])
    assert (same.low, same.value, same.high) == (0.0, 0.0, 0.0)
    other = compare_modes([many, many], [few])
    assert 0.4 < other.low < other.value < other.high < 0.7


def test_eval_counts_modes(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "scores.json"
    assert main(["eval", str(runs["knn"]), "--episodes", "7", "--workers", "1", "--json", str(out)]) == 0
    text, found = capsys.readouterr().out, json.loads(out.read_text())
    assert "1 of 3\n" in text
    assert found["entropy"]["value"] == 0.0
    assert found["successes_by_mode"][found["episodes"][0]["mode"]] == 7


def test_compare_counts_modes_of_all_trainings(runs: dict[str, Path], tmp_path: Path):
    flags = ["--episodes", "8", "--workers", "1", "--device", "cpu"]
    assert main(["compare", *map(str, runs.values()), *flags, "--out", str(tmp_path)]) == 0
    comparison = read_comparison(tmp_path / "comparison.json")
    text = format_comparison(comparison)
    assert "| entropy | success × entropy | episodes | distinct modes |" in text
    assert "| 1, 1 of 3 |" in text
    knn, sde = sorted(comparison.rows, key=lambda row: row.first.method)
    assert (knn.episodes, sde.episodes) == (16, 8)
    assert knn.difference(sde, "product").value <= 0.0
    page = (tmp_path / "report.html").read_text()
    assert '<td data-title="distinct modes">1, 1 of 3</td>' in page
