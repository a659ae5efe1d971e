"""Tests of modes and paths of episodes: what is recorded, counted and estimated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.errors import EnvError
from nsde_policy.eval.paths import PATH_POINTS, SAME_PATH, number_paths, shorten_path
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.tasks import GymTask, get_task
from nsde_policy.training.run import train_run
from tests.helpers.gates_task import GatesTask, demonstrate_gates


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A deterministic and a barely trained stochastic policy of the task `gates`."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for method in ("knn", "neural_sde"):
        config = get_task("gates").preset("fast", method)
        config = config.replace_parts(train={"steps": 60, "batch_size": 64})
        found[method] = folder / f"{method}-0"
        train_run(demonstrate_gates(), config, found[method], task="gates", seed=0)
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
    assert GymTask("Gates-v0").read_mode({"mode": "anything"}) is None


def test_short_paths_are_evenly_spaced_in_time():
    states = np.column_stack([np.arange(101.0), np.arange(101.0) ** 2, np.ones(101)])
    path = shorten_path(list(states), GatesTask())
    assert path.shape == (PATH_POINTS, 2)
    assert path[:, 0] == pytest.approx(np.linspace(0, 100, PATH_POINTS))
    assert np.array_equal(path[[0, -1]], states[[0, -1], :2])
    assert shorten_path(list(states[:1]), GymTask("Gates-v0")).shape == (PATH_POINTS, 3)


def test_paths_within_a_thousandth_of_the_extent_are_the_same():
    line = np.linspace([0.0, 0.0], [100.0, 1.0], PATH_POINTS)
    up, right = (np.array(shift) * SAME_PATH for shift in ([0.0, 1.0], [100.0, 0.0]))
    assert number_paths([line, line + 0.4 * up, line + 0.4 * right]) == (0, 0, 0)
    assert number_paths([line, line + 2 * up, line + 2 * right, line]) == (0, 1, 2, 0)
    assert number_paths([np.zeros((PATH_POINTS, 2)), np.full((PATH_POINTS, 2), 1e-12)]) == (0, 0)
