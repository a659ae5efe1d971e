"""Tests of the Meta-World tasks: episodes of a scripted expert, training on them, evaluation, pictures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.data.images import open_images
from nsde_policy.errors import ConfigError, EnvError, MissingDependencyError
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import TASKS, find_task, get_task
from nsde_policy.tasks.metaworld import MetaWorldEnv
from tests.helpers.replay import read_seeds, replay_episodes

REACH = "metaworld:reach-v3"


def collect(path: Path, *flags: str, episodes: int = 2) -> int:
    pytest.importorskip("metaworld", reason="needs the extra metaworld")
    expert = ["--env", REACH, "--policy", "metaworld.policies:SawyerReachV3Policy"]
    fixed = ["--episodes", str(episodes), "--only-success", "--workers", "1"]
    return main(["collect", "--out", str(path), *expert, *fixed, *flags])


def make_camera_env(obs_type: str = "pixels_agent_pos", **kwargs: object) -> Any:
    pytest.importorskip("metaworld", reason="needs the extra metaworld")
    return get_task(REACH).make_env(obs_type=obs_type, **kwargs)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of the scripted expert of reach."""
    path = tmp_path_factory.mktemp("metaworld") / "reach.zarr"
    assert collect(path) == 0
    return path


@pytest.fixture(scope="module")
def camera_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same episodes with camera frames."""
    path = tmp_path_factory.mktemp("metaworld") / "reach.zarr"
    assert collect(path, "--obs", "pixels") == 0
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


def test_frames_are_upright_and_hand_and_gripper_are_observed_beside_them():
    env, plain = make_camera_env(), get_task(REACH).make_env()
    (obs, info), (state, _) = env.reset(seed=3), plain.reset(seed=3)
    assert env.observation_space.contains(obs)
    assert obs["pixels"].shape == (96, 96, 3)
    np.testing.assert_array_equal(obs["agent_pos"], state[:4])
    np.testing.assert_array_equal(info["state"], state)
    smooth = env.render().reshape(96, 2, 96, 2, 3).mean((1, 3))
    np.testing.assert_allclose(obs["pixels"], smooth, atol=0.5)
    wall, table = (
        part.reshape(-1, 3).mean(0) for part in (obs["pixels"][:20, 60:], obs["pixels"][-20:, 60:])
    )
    assert np.ptp(wall) < 10, "the wall is grey, and above"
    assert table[0] - table[2] > 30, "the table is of wood, and below"
    env.close()


def test_frame_size_follows_the_arguments_and_a_wrong_observation_is_refused():
    env = make_camera_env("pixels_state", width=128, height=112)
    obs, _ = env.reset(seed=3)
    assert obs["pixels"].shape == (112, 128, 3)
    assert obs["state"].shape == (39,)
    env.close()
    with pytest.raises(EnvError, match=r"obs_type must be one of 'state', 'pixels_agent_pos'"):
        make_camera_env("pixel")


def test_nothing_is_drawn_that_is_not_observed(monkeypatch: pytest.MonkeyPatch):
    plain, env = get_task(REACH).make_env(), make_camera_env()
    drawn: list[object] = []
    render = MetaWorldEnv.render
    monkeypatch.setattr(MetaWorldEnv, "render", lambda self: drawn.append(self) or render(self))
    for each in (plain, env):
        each.reset(seed=3)
        each.step(np.ones(4, np.float32))
    assert len(drawn) == 2
    env.set_wrapper_attr("draws_frames", False)
    env.step(np.ones(4, np.float32))
    assert len(drawn) == 2
    env.close()


def test_missing_renderer_names_the_variable_and_leaves_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    make_camera_env().close()  # MuJoCo reads the variable when it is imported
    monkeypatch.setenv("MUJOCO_GL", "nosuch")
    assert collect(tmp_path / "reach.zarr", "--obs", "pixels") == 2
    message = capsys.readouterr().err
    assert "MuJoCo with MUJOCO_GL=nosuch raised" in message
    assert "set MUJOCO_GL=egl and run: apt-get install libegl1" in message
    assert list(tmp_path.glob("*/*")) == []


@pytest.mark.slow
def test_recorded_frames_lie_beside_the_states_of_a_recording_without_them(store: Path, camera_store: Path):
    plain, demos = load_demonstrations(store), load_demonstrations(camera_store)
    np.testing.assert_array_equal(demos.obs, plain.obs)
    np.testing.assert_array_equal(demos.act, plain.act)
    frames = open_images(camera_store, key="camera")
    assert frames.shape == (len(demos.obs), 96, 96, 3)
    env = make_camera_env()
    first, _ = env.reset(seed=read_seeds(camera_store)[0])
    np.testing.assert_array_equal(frames[:1][0], first["pixels"])
    env.close()


@pytest.mark.slow
def test_policies_from_frames_and_from_states_are_trained_on_one_store(camera_store: Path, tmp_path: Path):
    small = ["--train.steps", "3", "--train.batch-size", "16", "--device", "cpu"]
    sizes = {}
    for obs, flags in (("pixels", ["--encoder.train.steps", "3"]), ("state", [])):
        run, scores = tmp_path / obs, tmp_path / f"{obs}.json"
        assert (
            main(["train", "--demos", str(camera_store), "--obs", obs, "--out", str(run), *small, *flags])
            == 0
        )
        sizes[obs] = RunDirectory(run).read_record().spec.plain_dim
        limit = ["--env-kwargs", '{"max_episode_steps": 3}']
        command = ["eval", str(run), "--episodes", "1", "--workers", "1", "--json", str(scores), *limit]
        assert main(command) == 0
        assert json.loads(scores.read_text())["env"] == REACH
    assert sizes == {"pixels": 4, "state": 39}
    again = ["collect", "--policy", str(tmp_path / "pixels"), "--out", str(tmp_path / "more.zarr")]
    assert main([*again, "--episodes", "1", "--workers", "1", *limit]) == 0
    assert load_demonstrations(tmp_path / "more.zarr").obs.shape == (3, 39)
