"""Tests of `eval` in environments without a task: Gymnasium ids, classes of users, and broken ones."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import Demonstrations
from nsde_policy.errors import EnvError
from nsde_policy.eval.render import video
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import GymTask, Task, find_rate, get_task, get_task_of_run
from nsde_policy.tasks import adapter as adapters
from nsde_policy.tasks.adapter import EnvAdapter
from nsde_policy.training.train import train_run
from tests.helpers.environments import BrokenEnv, DictEnv, MatrixEnv
from tests.helpers.robot_arm import write_arm_store
from tests.helpers.toy_problems import make_robot_demos

HERE = "tests.helpers.environments"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    """Train nearest neighbours of random demonstrations; return runs by the sizes of observation and action.

    All are trained here: no test may take the log of a training for output of its command.
    """
    folder, rng, runs = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), {}
    for obs_dim, act_dim in ((3, 1), (3, 2), (4, 2), (5, 2)):
        obs, act = rng.uniform(-1, 1, (60, obs_dim)), rng.uniform(-3, 3, (60, act_dim))
        demos = Demonstrations(np.float32(obs), np.float32(act), np.array([20, 40, 60]))
        run = train_run(demos, get_task("none").preset("fast", "knn"), folder / f"{obs_dim}-{act_dim}")
        runs[obs_dim, act_dim] = run.path
    return runs


def evaluate(run: Path, *flags: str) -> int:
    return main(["eval", str(run), "--workers", "1", *flags])


@pytest.mark.parametrize(
    ("env", "sizes", "kwargs"),
    [
        ("Pendulum-v1", (3, 1), {"g": 9.8, "max_episode_steps": 20}),
        (f"{HERE}:MatrixEnv", (4, 2), {"max_episode_steps": 10}),
        (f"{HERE}:DictEnv", (5, 2), {}),
    ],
)
def test_eval_scores_a_policy_in_any_environment(runs, env, sizes, kwargs, tmp_path, capsys):
    out = tmp_path / "scores.json"
    flags = ["--env", env, "--env-kwargs", json.dumps(kwargs), "--episodes", "2", "--json", str(out)]
    assert evaluate(runs[sizes], *flags) == 0
    found, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert (found["env"], found["env_kwargs"]) == (env, kwargs)
    for name in ("mean_return", "length"):
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]
    assert found["length"]["value"] <= kwargs.get("max_episode_steps", 1000)
    assert "mean return" in printed
    assert "length" in printed
    says_success = "DictEnv" in env
    assert ("success_rate" in found) == ("success rate" in printed) == says_success
    assert {episode["success"] for episode in found["episodes"]} == {True if says_success else None}


@pytest.mark.parametrize(
    ("obs_keys", "obs_dim", "expected"),
    [
        (("state", "goal"), 5, [0.0, 0.1, 0.2, 0.3, 1.0]),
        (("goal",), None, [1.0]),
        (("state",), 5, [1.0, 0.0, 0.1, 0.2, 0.3]),  # the default name, for all that was recorded
        ((), None, [1.0, 0.0, 0.1, 0.2, 0.3]),
    ],
)
def test_dictionary_observations_are_selected_by_name_and_size_without_pictures(obs_keys, obs_dim, expected):
    env = EnvAdapter(DictEnv(), "mine", obs_keys=obs_keys, obs_dim=obs_dim)
    assert env.obs_dim == len(expected)
    np.testing.assert_allclose(env.reset(0)[0], expected)


def test_actions_are_clipped_reshaped_and_cast_to_the_action_space():
    env = EnvAdapter(MatrixEnv(), "mine")
    env.reset(0)
    env.step(env.clip(np.array([-2.0, 0.25])))
    (action,) = env.env.actions
    assert (action.shape, action.dtype, action.tolist()) == ((2, 1), np.float32, [[-0.5], [0.25]])


FAULTS = {
    "constructor": ["make_env raised RuntimeError: no licence"],
    "large_observation": ["observation has 5 values", "have 4", "--env"],
    "large_action": ["action has 3 values", "have 2"],
    "discrete_action": ["action space is Discrete(3)", "need a Box"],
    "reset": ["seed 100000, step 0", "reset raised ValueError: the arm is not homed"],
    "four_values": ["step 3", "not enough values to unpack (expected 5, got 4)"],
    "text_success": ["info['success'] is str 'yes', expected True or False"],
    "nan_observation": ["step 3", "observation must be finite as float32, got [0.0, nan, 0.0, 0.0]"],
    "nan_reward": ["reward must be finite as float32, got nan"],
    "endless": ["has not ended after 50 steps", "max_episode_steps"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_environment_gives_one_clear_error(runs, fault, monkeypatch, capsys):
    monkeypatch.setattr(adapters, "MAX_STEPS", 50)
    env = ["--env", f"{HERE}:BrokenEnv", "--env-kwargs", json.dumps({"fault": fault}), "--episodes", "1"]
    assert evaluate(runs[4, 2], *env) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "BrokenEnv" in said
    assert [part for part in FAULTS[fault] if part not in said] == []


def test_a_long_episode_without_a_limit_is_mentioned_before_it_fails(monkeypatch, caplog):
    monkeypatch.setattr(adapters, "LONG_EPISODE", 5)
    env = EnvAdapter(BrokenEnv("endless"), "mine")
    env.reset(0)
    for _ in range(6):
        env.step(np.zeros(env.act_dim))
    (record,) = caplog.records
    assert "goes on after 5 steps, and fails after 20000: set a limit" in record.getMessage()
    assert "max_episode_steps" in record.getMessage()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "Nowhere-v0"], "'Nowhere-v0' is not registered with Gymnasium"),
        (["--env", "no_such_module:Env"], "No module named 'no_such_module'"),
        (["--env", "Pendulum-v1", "--env-kwargs", '{"gravity": 1}'], "does not take these arguments"),
        (["--env", f"{HERE}:MatrixEnv", "--push", "1"], "leave out --push"),
        (["--env", "os:getcwd"], "expected a gymnasium.Env: derive the class from it"),
    ],
)
def test_an_environment_that_cannot_be_played_is_refused(runs, flags, message, capsys):
    assert evaluate(runs[4, 2], "--episodes", "1", *flags) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "message"),
    [("MatrixEnv", r"its observation has 4 values .* have 3"), ("MortalEnv", r"died.*--workers 1")],
)
def test_errors_of_worker_processes_are_raised(runs, env, message):
    task = GymTask(f"{HERE}:{env}")
    with pytest.raises(EnvError, match=message):
        list(RolloutPool(runs[3, 2], RolloutConfig(task), workers=2).run(range(4)))


@pytest.mark.parametrize(
    ("infos", "success", "step"),
    [
        ([{}, {}, {"is_success": True}], True, 2),
        ([{}, {"success": True}, {"success": False}], True, 1),
        ([{"success": False}, {}, {"is_success": False}], False, None),
        ([{}, {}, {}], None, None),
    ],
)
def test_default_outcome_is_the_return_and_success_at_any_step(infos, success, step):
    outcome = get_task("none").outcome([1.0, 2.0], infos)
    assert (outcome.success, outcome.score, outcome.success_step) == (success, 3.0, step)


def test_render_writes_pictures_of_the_environment(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(video, "encode_video", lambda episode: bytes([len([*episode.frames(32)])]))
    env = ["--env", f"{HERE}:MatrixEnv", "--env-kwargs", '{"max_episode_steps": 4}', "--episodes", "2"]
    assert evaluate(runs[4, 2], *env, "--render", "--out", str(tmp_path), "--videos", "1") == 0
    assert [file.name for file in tmp_path.iterdir()] == ["seed-100000-episode.mp4"]
    assert (tmp_path / "seed-100000-episode.mp4").read_bytes() == bytes([5])
    assert "wrote 1 mp4" in capsys.readouterr().err


def test_an_environment_without_pictures_cannot_be_rendered(runs, tmp_path, capsys):
    out = tmp_path / "pictures"
    env = ["--env", f"{HERE}:DictEnv", "--episodes", "1", "--render", "--out", str(out)]
    assert evaluate(runs[5, 2], *env) == 2
    assert "needs the render mode rgb_array in its metadata, got none" in capsys.readouterr().err
    assert not out.exists()


def test_rate_is_that_of_the_task_then_the_time_step_then_the_frames():
    class Timed(Task):
        name, rate_hz = "timed", 7.0

    pendulum, matrix, plain = (
        GymTask(name).make_env() for name in ("Pendulum-v1", f"{HERE}:MatrixEnv", f"{HERE}:DictEnv")
    )
    assert find_rate(Timed(), pendulum) == 7.0
    assert find_rate(GymTask("x"), pendulum) == pytest.approx(20.0)
    assert find_rate(GymTask("x"), matrix) == 5.0
    assert find_rate(GymTask("x"), plain) is None


def test_a_named_environment_replaces_the_recorded_one(runs):
    record = RunDirectory(runs[4, 2]).read_record()
    record = replace(record, task=f"{HERE}:BrokenEnv", env_kwargs={"fault": "step"})
    assert get_task_of_run(replace(record, task="pusht")).env_kwargs["fault"] == "step"
    assert get_task_of_run(record, record.task).env_kwargs == {}  # a named environment starts afresh
    assert get_task_of_run(record, "nsde_policy/PushT-v0") is get_task("pusht")
    assert isinstance(get_task_of_run(record, "Pendulum-v1"), GymTask)


def test_train_records_the_environment_and_eval_plays_in_it(tmp_path, capsys):
    demos = replace(make_robot_demos(3, 12, obs_dim=3, act_dim=1), rate_hz=20.0)
    store = write_arm_store(tmp_path / "demos.zarr", demos)
    flags = ["--env", "Pendulum-v1", "--env-kwargs", '{"max_episode_steps": 9}']
    train = ["train", "--demos", str(store), "--policy", "regression", "--preset", "fast"]
    args = [*train, *flags, "--train.steps", "2", "--train.log-every", "1", "--train.batch-size", "4"]
    assert main([*args, "--out", str(tmp_path / "run")]) == 0, capsys.readouterr().err
    run = RunDirectory(tmp_path / "run")
    record = run.read_record()
    assert (record.task, record.env_kwargs) == ("Pendulum-v1", {"max_episode_steps": 9})
    assert (tmp_path / "run" / "training.png").exists()
    assert evaluate(run.path, "--episodes", "1", "--json", "-") == 0
    shown = capsys.readouterr().out
    assert json.loads(shown[shown.index("{") :])["length"]["value"] == 9
