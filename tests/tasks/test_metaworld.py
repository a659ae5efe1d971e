"""Tests of the Meta-World tasks: episodes of a scripted expert, training on them, evaluation, pictures."""

import json
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.errors import ConfigError, MissingDependencyError
from nsde_policy.tasks import TASKS, find_task, get_task
from tests.helpers.replay import read_seeds, replay_episodes

REACH = "metaworld:reach-v3"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of the scripted expert of reach."""
    pytest.importorskip("metaworld", reason="needs the extra metaworld")
    path = tmp_path_factory.mktemp("metaworld") / "reach.zarr"
    expert = ["--env", REACH, "--policy", "metaworld.policies:SawyerReachV3Policy", "--episodes", "2"]
    assert main(["collect", "--out", str(path), *expert, "--only-success", "--workers", "1"]) == 0
    return path


@pytest.mark.slow
def test_every_environment_of_the_package_is_a_task():
    metaworld = pytest.importorskip("metaworld", reason="needs the extra metaworld")
    names = [f"metaworld:{name}" for name in sorted(metaworld.ALL_V3_ENVIRONMENTS)]
    assert sorted(name for name in TASKS.load_all() if name.startswith("metaworld:")) == names


def test_missing_simulator_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "metaworld", None)
    with pytest.raises(MissingDependencyError, match=r"pip install metaworld==3.1.1"):
        get_task(REACH).make_env()


@pytest.mark.slow
def test_collected_episodes_succeed_when_replayed(store: Path):
    assert find_task(store).name == REACH
    demos = load_demonstrations(store)
    for error, success in replay_episodes(demos, get_task(REACH), read_seeds(store)):
        assert success
        assert error < 0.01


@pytest.mark.slow
def test_policy_is_trained_evaluated_and_drawn(store: Path, tmp_path: Path):
    run, scores = tmp_path / "run", tmp_path / "scores.json"
    small = ["--preset", "fast", "--train.steps", "3", "--train.batch-size", "16", "--device", "cpu"]
    assert main(["train", "--demos", str(store), "--out", str(run), *small]) == 0
    limit = ["--env-kwargs", '{"max_episode_steps": 3}']
    command = ["eval", str(run), "--episodes", "1", "--workers", "1", "--json", str(scores), *limit]
    assert main([*command, "--render", "--videos", "1"]) == 0
    found = json.loads(scores.read_text())
    assert found["env"] == REACH
    assert all(each["success"] or each["steps"] == 3 for each in found["episodes"])
    assert next((run / "eval").glob("*.mp4")).stat().st_size > 1_000


def test_unknown_camera_is_refused_with_the_known_ones():
    pytest.importorskip("metaworld", reason="needs the extra metaworld")
    with pytest.raises(ConfigError, match=r"no camera 'nope', expected one of corner, .*--env-kwargs"):
        get_task(REACH).make_env(camera_name="nope")
    get_task(REACH).make_env(camera_name="topview").close()


def test_start_depends_on_the_seed_alone():
    pytest.importorskip("metaworld", reason="needs the extra metaworld")
    env = get_task("metaworld:drawer-open-v3").make_env()
    first, again, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert abs(first[4] - first[-3]) < 1e-6, "handle and goal of a drawer have the same x"
    for _ in range(3):
        env.step(np.ones(4, np.float32))
    np.testing.assert_array_equal(env.reset(seed=1)[0], first)
