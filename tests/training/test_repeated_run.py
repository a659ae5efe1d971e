"""Tests for `train --preset RUN`: the settings of a run, on all of its episodes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import nsde_policy
from nsde_policy.cli.main import main
from nsde_policy.cli.train import Train
from nsde_policy.policy.loading import load_model
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.presets import ResolvedTraining
from tests.helpers.camera_robot import write_camera_store
from tests.helpers.robot_arm import make_arm_demos, write_arm_store

QUICK = ["--device", "cpu", "--steps", "20", "--width", "16", "--select", "none"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Return a run with settings of `auto`, which held out half of the episodes."""
    folder = tmp_path_factory.mktemp("repeated")
    store = write_arm_store(folder / "arm.zarr", make_arm_demos(episodes=6, seconds=1.0))
    args = [
        "--demos",
        str(store),
        "--validation",
        "0.5",
        "--model.noise",
        "0.3",
        "--out",
        str(folder / "run"),
    ]
    assert main(["train", *args, *QUICK]) == 0
    return RunDirectory(folder / "run")


def resolve(*args: str) -> ResolvedTraining:
    return Train.parse(args, "train").resolve()


def test_a_run_is_repeated_on_all_episodes_with_scaled_sigma(first: RunDirectory, tmp_path: Path):
    record = first.read_record()
    policy = nsde_policy.train(preset=first.path, out=tmp_path / "again", device="cpu")
    again = policy.record
    assert (again.config, again.task) == (record.config, record.task)
    assert (record.demos.episodes, len(record.demos.held_out)) == (6, 3)
    assert again.demos.fingerprint == record.demos.fingerprint
    assert again.demos.held_out == ()
    plain = nsde_policy.train(record.demos.source, record.config, out=tmp_path / "plain", device="cpu")
    states = torch.from_numpy(np.array(record.spec.low, np.float32)).expand(1, 2, -1)
    sampling = policy.model.learned_sampling()
    scaled, trained = (each.model.predict_step(states, sampling=sampling).std for each in (policy, plain))
    factors = json.loads((first.path / "calibration.json").read_text())["std_factors"]
    assert max(factors) > 1.1 * min(factors)
    np.testing.assert_allclose((scaled / trained)[0], factors, rtol=1e-3)


def test_a_run_with_cameras_is_repeated_with_a_new_encoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = write_camera_store(tmp_path / "arm.zarr", arm=True)
    args = ["--demos", str(store), "--images", "top", "wrist", "--validation", "0.5"]
    args += ["--encoder", "keypoints", "--encoder.size", "32", "--encoder.train.steps", "2"]
    run, out = tmp_path / "auto", tmp_path / "again"  # named like a preset that measures demonstrations
    assert main(["train", *args, *QUICK, "--out", str(run)]) == 0
    assert resolve("--preset", str(run)).adapt is None
    assert main(["train", "--preset", str(run), "--device", "cpu", "--out", str(out)]) == 0
    assert "σ is scaled as the preset measured" in capsys.readouterr().err
    (record, _), (again, _) = (load_model(RunDirectory(path)) for path in (run, out))
    assert again.config == record.config
    assert again.cameras == record.cameras
    assert again.demos.held_out == ()
    encoders = [json.loads((path / "encoder/config.json").read_text()) for path in (run, out)]
    assert [len(encoder["held_out"]) for encoder in encoders] == [3, 0]


def test_flags_change_what_a_run_names(first: RunDirectory, tmp_path: Path):
    record = first.read_record()
    store, other = Path(record.demos.source), tmp_path / "other.zarr"
    shutil.copytree(store, other)
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(first.path, run.path)
    recorded = json.loads(run.config.read_text())
    run.config.write_text(json.dumps({**recorded, "task": "avoiding", "env_kwargs": {"start": "varied"}}))
    preset = ["--preset", str(run.path)]
    for flags in ([], ["--demos", str(store)]):
        same = resolve(*preset, *flags)
        assert (same.demos, same.task, same.env_kwargs) == (store, "avoiding", {"start": "varied"})
        assert same.config == record.config
    moved = resolve(*preset, "--demos", str(other), "--chunk", "3")
    assert (moved.demos, moved.task, moved.env_kwargs) == (other, "none", {})
    assert moved.config == record.config.change({"chunk": 3})
    assert resolve(*preset, "--task", "none").task == "none"
    assert resolve(*preset, "--images-dropout", "0").config == record.config


def test_a_run_of_another_method_is_repeated_with_this_method(
    first: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = first.read_record().demos.source
    assert main(["train", "--demos", source, "--policy", "knn", "--out", str(tmp_path / "knn")]) == 0
    assert resolve("--preset", str(tmp_path / "knn")).config.method == "knn"
    assert main(["train", "--preset", str(tmp_path / "knn"), "--policy", "diffusion"]) == 2
    assert "/knn holds settings of knn: leave out --policy diffusion" in capsys.readouterr().err


def test_a_run_that_cannot_be_repeated_is_refused_in_one_line(
    first: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    recorded = json.loads(first.config.read_text())
    gone = {**recorded, "demos": {**recorded["demos"], "source": "gone.zarr"}}
    cases = {
        "missing": (None, "runs/missing does not exist; expected a folder that `nsde-policy train` wrote"),
        "empty": ("", "runs/empty is not a run: it has no config.json; expected a folder"),
        "damaged": ("{", "runs/damaged/config.json is not valid JSON"),
        "other": ("{}", "runs/other: config.json is not a run record of this version"),
        "gone": (
            json.dumps(gone),
            "trained on gone.zarr, which does not exist here: name its demonstrations",
        ),
        "code": (json.dumps({**recorded, "task": "my_package:MyEnv"}), "name it yourself with --env"),
    }
    monkeypatch.chdir(tmp_path)
    for name, (content, message) in cases.items():
        if content is not None:
            (tmp_path / "runs" / name).mkdir(parents=True)
        if content:
            (tmp_path / "runs" / name / "config.json").write_text(content)
        assert main(["train", "--preset", f"runs/{name}", "--device", "cpu", "--out", "out"]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert message in said
        assert said.startswith("nsde-policy: ")
        assert not (tmp_path / "out").exists()
    assert main(["train", "--preset", "empty"]) == 2
    assert "has no preset 'empty'" in (said := capsys.readouterr().err)
    assert "a run needs its path, such as runs/empty" in said
