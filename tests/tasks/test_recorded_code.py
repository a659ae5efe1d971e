"""Tests that a store or a run directory never runs code: `module:Class` comes from the command line only."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nsde_policy.cli.main import main
from nsde_policy.errors import ConfigError
from nsde_policy.tasks.registry import get_recorded_task
from tests.helpers import environments
from tests.helpers.robot_arm import write_arm_store
from tests.helpers.toy_problems import make_robot_demos

HERE = environments.__name__
CODE = "os:system"


def write_store(path: Path, attributes: object) -> Path:
    write_arm_store(path, replace(make_robot_demos(3, 12, obs_dim=5, act_dim=2), rate_hz=10.0))
    (path / ".zattrs").write_text(json.dumps(attributes))
    return path


def train(store: Path, out: Path, *flags: str) -> int:
    return main(["train", "--demos", str(store), "--policy", "knn", "--out", str(out), *flags])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory whose files a test may change in a copy."""
    folder = tmp_path_factory.mktemp("code")
    assert train(write_store(folder / "demos.zarr", {}), folder / "run", "--device", "cpu") == 0
    return folder / "run"


@pytest.mark.parametrize("attributes", [{"env_id": CODE}, {"made_with": {"env": CODE}}], ids=json.dumps)
def test_a_store_runs_no_code(attributes, tmp_path, capsys):
    marker = tmp_path / "pwned"
    made_with = {**attributes.get("made_with", {}), "env_kwargs": {"command": f"touch {marker}"}}
    store = write_store(tmp_path / "demos.zarr", {**attributes, "made_with": made_with})
    assert train(store, tmp_path / "run", "--device", "cpu") == 0
    assert "name it yourself with --env os:system" in capsys.readouterr().err
    assert json.loads((tmp_path / "run/config.json").read_text())["task"] == "none"
    assert main(["data", "info", str(store)]) == 0
    assert not marker.exists()


@pytest.mark.parametrize(
    "command",
    ["eval RUN", "compare RUN", "collect --policy RUN --out new.zarr", "play RUN"],
)
def test_a_run_directory_runs_no_code(run, command, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    record = json.loads((copy / "config.json").read_text())
    marker = tmp_path / "pwned"
    record.update(task=CODE, env_kwargs={"command": f"touch {marker}"})
    (copy / "config.json").write_text(json.dumps(record))
    monkeypatch.chdir(tmp_path)
    assert main(command.replace("RUN", str(copy)).split()) == 2
    said = capsys.readouterr().err
    assert "name it yourself with --env os:system --env-kwargs" in said
    assert said.count("\n") == 1
    assert not marker.exists()


@pytest.mark.parametrize(
    "env_kwargs",
    [
        {"xml_file": "/tmp/robot.xml"},
        {"options": [{"path": "../robot.xml"}]},
        {"a/b": 1},
        {"wrapper": "os.system"},
        {"url": "C:\\robot.xml"},
    ],
    ids=json.dumps,
)
def test_recorded_arguments_are_plain_values(env_kwargs):
    with pytest.raises(ConfigError, match=r"arguments with paths or code.*--env Pendulum-v1 --env-kwargs"):
        get_recorded_task("Pendulum-v1", env_kwargs)


def test_recorded_arguments_of_a_registered_environment_are_used():
    env_kwargs = {"g": 9.8, "render_mode": "rgb_array", "limits": [1, None, True, "fast-2.0"]}
    assert get_recorded_task("Pendulum-v1", env_kwargs).env_kwargs == env_kwargs


def test_what_is_no_environment_is_not_called(run, tmp_path, capsys):
    marker = tmp_path / "pwned"
    env_kwargs = json.dumps({"args": ["touch", str(marker)]})
    env = ["--env", "subprocess:Popen", "--env-kwargs", env_kwargs, "--workers", "1"]
    assert main(["eval", str(run), *env]) == 2
    assert "Popen'>, expected a gymnasium.Env" in capsys.readouterr().err
    assert not marker.exists()


def test_a_run_of_an_own_class_is_played_if_the_command_line_names_it(tmp_path, capsys):
    env, flags = f"{HERE}:DictEnv", ["--episodes", "2", "--workers", "1"]
    run, store = tmp_path / "run", tmp_path / "demos.zarr"
    write_store(store, {"made_with": {"env": env}})
    assert train(store, run, "--env", env, "--device", "cpu") == 0
    assert json.loads((run / "config.json").read_text())["task"] == env
    assert main(["eval", str(run), *flags]) == 2
    assert f"name it yourself with --env {env}" in capsys.readouterr().err
    assert main(["eval", str(run), "--env", env, *flags]) == 0
    compare = ["compare", str(run), "--env", env, *flags]
    assert main([*compare, "--out", str(tmp_path / "compared")]) == 0
