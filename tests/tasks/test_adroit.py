"""Tests of the Adroit tasks: collect, train, evaluate and render in MuJoCo, replay expert episodes."""

import json
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.tasks import TASKS, find_task, get_task
from tests.helpers.replay import read_seeds, replay_episodes

NAMES = ("adroit-door", "adroit-hammer", "adroit-pen", "adroit-relocate")
HERE = "tests.tasks.test_adroit"


class Wave:
    """Move all joints slowly and alike, so that there is something to imitate."""

    def reset(self) -> None:
        self.step = 0

    def select_action(self, obs: np.ndarray) -> np.ndarray:
        self.step += 1
        return np.full(24, 0.3 * np.sin(0.1 * self.step))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of the pen that was trained for three steps."""
    pytest.importorskip("gymnasium_robotics", reason="needs the extra adroit")
    folder = tmp_path_factory.mktemp("adroit")
    store, out = str(folder / "pen.zarr"), str(folder / "run")
    collect = ["--env", "adroit-pen", "--policy", f"{HERE}:Wave", "--episodes", "2", "--workers", "1"]
    assert main(["collect", "--out", store, *collect]) == 0
    small = ["--preset", "fast", "--train.steps", "3", "--train.batch-size", "16", "--device", "cpu"]
    assert main(["train", "--demos", store, "--task", "adroit-pen", "--out", out, *small]) == 0
    return folder / "run"


def test_a_group_of_tasks_is_one_file():
    assert all(name in TASKS for name in NAMES)
    assert {*NAMES} <= {*TASKS.load_all()}
    assert "adroit" not in TASKS.load_all()
    assert get_task("AdroitHandDoor-v1").name == "adroit-door"


@pytest.mark.slow
def test_eval_scores_and_renders_without_a_display(run: Path, tmp_path: Path):
    from imageio.v3 import imread

    scores = tmp_path / "scores.json"
    command = ["eval", str(run), "--episodes", "2", "--workers", "1", "--json", str(scores)]
    command += ["--env-kwargs", '{"max_episode_steps": 4}']
    assert main([*command, "--render", "--videos", "1", "--out", str(tmp_path)]) == 0
    found = json.loads(scores.read_text())
    assert found["env"] == "AdroitHandPen-v1"
    assert [(each["seed"], each["steps"]) for each in found["episodes"]] == [(100_000, 4), (100_001, 4)]
    assert {each["success"] for each in found["episodes"]} <= {True, False}
    picture = np.asarray(imread(next(tmp_path.glob("*.mp4")), index=0))
    assert picture[100:300, 50:250].std() > 10, "the first picture is blank"


@pytest.mark.parametrize("name", NAMES)
def test_expert_episode_succeeds_when_replayed_from_its_seed(name: str, shared_demos: Path):
    pytest.importorskip("gymnasium_robotics", reason="needs the extra adroit")
    store = shared_demos / f"{name.replace('-', '_')}_expert.zarr"
    assert find_task(store).name == name
    demos, seeds = load_demonstrations(store), read_seeds(store)
    assert len(seeds) == len(demos)
    error, success = next(replay_episodes(demos, get_task(name), seeds))
    assert success
    assert error < 1e-3
