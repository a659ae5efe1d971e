"""Tests for nsde_policy/tasks/avoiding.py and the demonstrations of obstacle avoidance in the package."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from examples.avoiding_expert import LEAST_CLEARANCE
from nsde_policy.assets import EMBEDDED_FIRST_SEED, find_demos
from nsde_policy.cli.main import main
from nsde_policy.data import DemoWriter, Episode, load_demonstrations
from nsde_policy.envs.avoiding import geometry
from nsde_policy.errors import DemoError
from nsde_policy.tasks import get_task

TASKS = ("avoiding", "avoiding_varied")


@pytest.mark.parametrize("name", TASKS)
def test_every_embedded_demonstration_replays_to_success_in_its_own_mode(name):
    task, demos = get_task(name), load_demonstrations(find_demos(name))
    env = task.make_env()
    for index, episode in [*enumerate(demos)][::5]:
        seed = EMBEDDED_FIRST_SEED + index
        obs, _ = env.reset(seed=seed)
        path = [obs[2:]]
        for recorded, action in zip(episode.obs, episode.act, strict=True):
            assert np.allclose(obs, recorded, atol=1e-5)
            obs, reward, terminated, _, info = env.step(action)
            path.append(obs[2:])
            assert info["mode"] in (geometry.UNKNOWN_MODE, seed % geometry.N_MODES)
        assert terminated
        assert info["success"]
        assert not info["touched"]
        assert info["mode"] == seed % geometry.N_MODES
        assert reward == info["progress"] == 1.0
        clear = min(geometry.measure_clearance(a, b) for a, b in itertools.pairwise(path))
        assert clear > LEAST_CLEARANCE - 1e-5


def test_a_task_without_embedded_demonstrations_asks_for_a_store():
    with pytest.raises(DemoError, match="no demonstrations of none: give a store with --demos"):
        find_demos("none")


def test_chunk_longer_than_an_episode_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    limit, run = get_task("avoiding").make_env().spec.max_episode_steps, tmp_path / "run"
    quick = ["--preset", "fast", "--train.steps", "1", "--model.network.width", "8", "--device", "cpu"]
    command = ["train", "--task", "avoiding", "--out", str(run), "--select", "none", *quick]
    assert main([*command, "--chunk", str(limit + 1)]) == 2
    assert "--chunk is 251, but episodes of avoiding end after 250 steps" in capsys.readouterr().err
    assert not run.exists()
    assert main([*command, "--chunk", str(limit)]) == 0


def test_mirror_images_of_demonstrations_succeed():
    task, episode = get_task("avoiding"), load_demonstrations(find_demos("avoiding"))[5]
    (shift, *_), (turn, *_) = task.training.mirror.obs, task.training.mirror.act
    start = [shift[2] + shift[1] * episode.obs[0, 0], episode.obs[0, 1]] * 2
    env = task.make_env()
    env.reset(options={"state": start})
    for action in episode.act:
        *_, info = env.step(np.array([turn[1] * action[0], action[1]]))
    assert info["success"]
    assert info["mode"] == 12 * 1 + 4 * 1 + 2  # the mirror image of mode 5: side 0, gap 1, gap 1


def test_positions_are_refused_where_changes_are_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    demos = load_demonstrations(find_demos("avoiding")).take(12)
    act, positions, few = demos.act, demos.obs[:, 2:], demos.act.copy()
    few[::20] *= 4
    command = ["train", "--task", "avoiding", "--preset", "fast", "--train.steps", "1", "--select", "none"]
    command += ["--model.network.width", "8", "--device", "cpu"]
    results = {}
    for name, actions in {"changes": act, "few": few, "positions": positions}.items():
        with DemoWriter(tmp_path / name, rate_hz=demos.rate_hz) as writer:
            for start, end in zip(demos.starts, demos.episode_ends, strict=True):
                writer.append(Episode(demos.obs[start:end], actions[start:end]))
        caplog.clear()
        code = main([*command, "--demos", str(tmp_path / name), "--out", str(tmp_path / f"{name}_run")])
        results[name] = (
            code,
            "are outside those of the task 'avoiding'" in caplog.text + capsys.readouterr().err,
        )
    assert results == {"changes": (0, False), "few": (0, True), "positions": (2, True)}
    assert not (tmp_path / "positions_run").exists()
