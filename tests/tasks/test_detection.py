"""Tests for tasks/detection.py: the task is what the store records, never Push-T for foreign data."""

import json
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.assets import EMBEDDED_DEMOS
from nsde_policy.cli.main import main
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.errors import DemoError
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import check_recorded_task, find_task, get_task


def write_metres_store(path: Path, **options: object) -> Path:
    """Write demonstrations with the sizes of Push-T, 5-D and 2-D, but of a robot in metres."""
    rng = np.random.default_rng(0)
    with DemoWriter(path, **options) as writer:
        for _ in range(4):
            obs = 0.3 + 0.01 * np.cumsum(rng.normal(size=(20, 5)), axis=0).astype(np.float32)
            writer.append(Episode(obs, obs[:, :2] + np.float32(0.002)))
    return path


def test_foreign_demonstrations_of_the_same_sizes_train_without_a_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    store = write_metres_store(tmp_path / "my.zarr", rate_hz=10)
    assert main(["train", "--demos", str(store), "--policy", "knn", "--device", "cpu"]) == 0
    assert f"your own robot (no task): {store}; --env ID or --task NAME" in capsys.readouterr().err
    record = RunDirectory(Path("runs/my-knn-auto-0")).read_record()
    assert record.task == "none"
    assert record.spec.circular == ()
    assert not record.config.demos.mirror
    assert record.config.demos.first_action_from == (0, 1)
    assert max(record.spec.high) < 1.0  # no mirror image at 512


@pytest.mark.parametrize(
    ("made_with", "name", "kwargs"),
    [
        ({"env": "nsde_policy/PushT-v0", "reset_rule": "benchmark"}, "pusht", {}),
        ({"env": "Pendulum-v1", "env_kwargs": {"g": 9.8}}, "Pendulum-v1", {"g": 9.8}),
        ({"task": "pusht"}, "pusht", {}),
        ({"env": "no such environment"}, "none", {}),
    ],
)
def test_task_is_what_the_store_records(tmp_path: Path, made_with: dict, name: str, kwargs: dict):
    found = find_task(write_metres_store(tmp_path / "my.zarr", made_with=made_with))
    assert (found.name, found.env_kwargs) == (name, kwargs)
    assert str(tmp_path / "my.zarr") in found.reason


@pytest.mark.parametrize(
    ("env", "flag", "task"),
    [("metaworld:push-v3", "--task", "metaworld:reach-v3"), ("Any-v0", "--env", "Pendulum-v1")],
)
def test_task_of_another_environment_than_the_recorded_one_is_refused(
    env: str, flag: str, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = write_metres_store(tmp_path / "my.zarr", made_with={"env": env})
    run = [flag, task, "--policy", "knn", "--out", str(tmp_path / "run")]
    assert main(["train", "--demos", str(store), *run]) == 2
    expected = f"made in the environment {env}, expected {get_task(task).env_id} of the task {task}"
    assert expected in capsys.readouterr().err
    assert main(["tune", "--demos", str(store), *run]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", ["avoiding", "avoiding_varied", "none"])
def test_tasks_of_the_recorded_environment_are_accepted(task: str, tmp_path: Path):
    store = write_metres_store(tmp_path / "my.zarr", made_with={"env": get_task("avoiding").env_id})
    check_recorded_task(get_task(task), store)


def test_root_attribute_names_the_task(tmp_path: Path):
    store = write_metres_store(tmp_path / "my.zarr")
    for attributes in ({"task": "pusht"}, {"env_id": "nsde_policy/PushT-v0"}):
        (store / ".zattrs").write_text(json.dumps(attributes))
        assert find_task(store).name == "pusht"
    (store / ".zattrs").write_text(json.dumps({"task": 5, "made_with": "hand"}))
    assert find_task(store).name == "none"


def test_embedded_and_copied_demonstrations_give_their_task(tmp_path: Path):
    copy = tmp_path / "copy.zarr.zip"
    copy.write_bytes(EMBEDDED_DEMOS.read_bytes())
    assert [find_task(path).name for path in (None, EMBEDDED_DEMOS, copy)] == ["pusht"] * 3


def test_public_demonstrations_are_recognised_by_content(human_demos: Path):
    found = find_task(human_demos)
    assert found.name == "pusht"
    assert "public demonstrations" in found.reason


def test_unreadable_store_is_an_error(tmp_path: Path):
    with pytest.raises(DemoError):
        find_task(tmp_path / "nothing.zarr")
