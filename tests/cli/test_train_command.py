"""Tests for `nsde-policy train`, also with demonstrations of a custom robot."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from nsde_policy.cli.main import main
from nsde_policy.cli.train import Train
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.policy.policy import Policy
from nsde_policy.training.fit import TableSource
from nsde_policy.training.train import name_demos
from tests.golden.behaviour import DATA
from tests.helpers.camera_robot import write_camera_store
from tests.helpers.demo_stores import write_store

QUICK = ["--train.steps", "40", "--train.log-every", "10", "--model.network.width", "16", "--device", "cpu"]
QUICK += ["--select", "none"]


@pytest.fixture(scope="module")
def arm_demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record demonstrations of a custom robot: 6-D observations with one wrapped angle, 3-D actions."""
    rng, store = np.random.default_rng(0), tmp_path_factory.mktemp("arm") / "robot.zarr"
    with DemoWriter(store, rate_hz=20, angles=(1,)) as writer:
        for _ in range(4):
            obs = np.cumsum(rng.normal(size=(30, 6)), axis=0).astype(np.float32)
            obs[:, 1] %= 2 * math.pi
            writer.append(Episode(obs, rng.normal(size=(30, 3)).astype(np.float32)))
    return store


@pytest.mark.slow
def test_command_trains_a_policy_for_a_custom_robot(
    arm_demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    assert main(["train", "--demos", str(arm_demos), "--task", "none", "--out", str(out), *QUICK]) == 0
    assert f"trained {out}" in capsys.readouterr().out
    policy = Policy.from_pretrained(out)
    assert (policy.spec.obs_dim, policy.spec.act_dim) == (6, 3)
    assert policy.record.spec.circular == (1,)  # from the attributes of the store
    assert np.isfinite(policy.select_action(np.zeros(6))).all()
    assert (out / "training.png").stat().st_size > 5000


def test_too_few_held_out_episodes_are_reported_before_training(
    arm_demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    args = ["train", "--demos", str(arm_demos), "--policy", "knn", "--device", "cpu", "--validation"]
    for fraction, said in ("0.5", True), ("0", False):
        assert main([*args, fraction, "--out", str(tmp_path / fraction)]) == 0
        told = "2 of 4 episodes are held out, and a verdict of `score` needs 6: record at least 12 episodes"
        assert (told in capsys.readouterr().err) == said


def test_the_default_run_folder_is_named_after_the_demonstrations():
    names = {
        "arm": "arm",
        "arm.zarr": "arm",
        "a/b.zarr.zip": "b",
        "v1.2/lift.hdf5": "lift",
        ".hidden": ".hidden",
    }
    assert {path: name_demos(Path(path)) for path in names} == names


def test_stores_of_the_same_name_do_not_share_a_run(
    arm_demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        shutil.copytree(arm_demos, tmp_path / folder / "arm.zarr")
    args = ["train", "--policy", "knn", "--device", "cpu", "--demos"]
    assert main([*args, "a/arm.zarr"]) == 0
    assert main([*args, "b/arm.zarr"]) == 2
    expected = "runs/arm-knn-auto-0 holds a run of a/arm.zarr: give the run of b/arm.zarr another --out"
    assert expected in capsys.readouterr().err
    assert main([*args, "a/arm.zarr"]) == 2
    assert "already holds a run; continue with --resume" in capsys.readouterr().err


def test_flag_overrides_the_preset(arm_demos: Path, tmp_path: Path):
    out = tmp_path / "run"
    args = ["--demos", str(arm_demos), "--task", "none", "--preset=paper", "--chunk", "3", "--out", str(out)]
    assert main(["train", *args, *QUICK]) == 0
    config = json.loads((out / "config.json").read_text())["config"]
    assert config["chunk"] == 3
    assert config["model"]["network"]["kind"] == "separate"
    assert config["model"]["flow_loss"] == "log"


def test_stores_that_omit_chunks_of_zeros_are_trained_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays = {"data/gripper": np.zeros((40, 1))}
    store = write_store(tmp_path / "arm.zarr", arrays, every_chunk=False)
    out = tmp_path / "run"
    args = ["train", "--demos", str(store), "--obs-keys", "state", "gripper", "--out", str(out), *QUICK]
    assert main(args) == 2
    assert "chunk data/gripper/0.0 is missing" in (said := capsys.readouterr().err)
    assert "--accept-omitted-chunks" in said
    assert main([*args, "--accept-omitted-chunks"]) == 0
    assert "preset auto" in capsys.readouterr().err
    config = json.loads((out / "config.json").read_text())["config"]
    assert config["demos"]["accept_omitted_chunks"] is True


def test_running_out_of_memory_exits_with_code_2(
    arm_demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    args = ["--demos", str(arm_demos), "--task", "none", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(TableSource, "sample", lambda *_: torch.empty(2**60))  # more than addresses can reach
    assert main(["train", *args]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("nsde-policy: out of memory")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--demos", "ARM", "--task", "pusht"], "--task none trains without a task"),
        (["--demos", "/nowhere.zarr"], "/nowhere.zarr"),
        (["--demos", "ARM", "--obs-keys", "joint_pos"], "use --obs-keys state"),
        (["--demos", "ARM", "--act-key=command"], "use --act-key action"),
        (["--demos", "ARM", "--angles", "9"], "9 cannot be an angle column"),
        (["--demos", "ARM", "--rate", "-3"], "rate_hz >= 0"),
        (["--demos", "ARM", "--task", "none", "--demos.mirror"], "no mirror symmetry"),
        (["--demos", "ARM", "--task", "none", "--model.network.dropout", "1.5"], "dropout"),
        (["--demos", "ARM", "--task", "none", "--out", "/proc/x"], "/proc/x cannot be created"),
        (["--demos", "ARM", "--out", "ARM/run"], "choose a path outside of it"),
        (["--preset", "fsat"], "has no preset 'fsat'"),
        (["--task", "psht"], "the closest are pusht"),
        (["--task", "pusht", "--preset", "pixels-fast"], "add --obs pixels or --images"),
        (["--task", "avoiding", "--env-kwargs", '{"start": 3}'], "start must be one of 'fixed', 'varied'"),
        (["--demos", "ARM", "--demos.first-action-from", "9", "1", "2"], "observation columns"),
        (["--demos", "ARM", "--seed=-1", "--validation", "0.5"], "need --seed >= 0, got -1"),
    ],
)
def test_bad_input_exits_with_code_2(
    arm_demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
):
    args = [arg.replace("ARM", str(arm_demos)) for arg in args]
    assert main(["train", "--out", str(tmp_path / "run"), *args]) == 2
    output = capsys.readouterr().err
    assert message in output
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "device", "preset", "size", "encoder_steps", "selection_steps"),
    [
        ([], "cpu", "pixels-fast", 64, 1000, 666),
        (["--preset", "auto"], "cpu", "pixels-fast", 64, 1000, 666),
        ([], "cuda", "auto", 96, 2430, 666),
        (["--encoder", "landmarks"], "cpu", "pixels-fast", 96, 800, 666),
        (["--encoder", "landmarks"], "cuda", "auto", 96, 1200, 666),
        (["--steps", "500"], "cpu", "pixels-fast", 64, 250, 166),
        (["--steps", "500", "--encoder.train.steps", "7"], "cpu", "pixels-fast", 64, 7, 166),
        (["--encoder", "resnet", "--policy", "regression"], "cpu", "pixels-fast", None, None, 15_000),
    ],
)
def test_cameras_on_a_cpu_get_a_small_encoder_and_fewer_steps_shorten_all_parts(
    tmp_path: Path,
    flags: list[str],
    device: str,
    preset: str,
    size: int | None,
    encoder_steps: int | None,
    selection_steps: int,
):
    store = write_camera_store(tmp_path / "arm.zarr", arm=True)
    args = ["--demos", str(store), "--task", "none", "--images", "top", "wrist", "--device", device, *flags]
    resolved = Train.parse(args, "train").resolve()
    config = resolved.config
    assert resolved.preset == preset
    if size is not None:
        assert config.encoder.size == size
        assert config.encoder.train.steps == encoder_steps
    assert config.selection.train.steps == selection_steps


@pytest.mark.parametrize(
    ("flags", "steps"),
    [([], 5000), (["--steps", "250"], 50), (["--steps", "250", "--encoder.occlusion-steps", "7"], 7)],
)
def test_fewer_steps_also_shorten_the_training_on_occluded_frames(flags: list[str], steps: int):
    args = ["--demos", str(DATA / "camera_demos.zarr.zip"), "--obs", "pixels", "--preset", "pixels"]
    args += ["--task", "pusht"]
    config = Train.parse([*args, *flags], "train").resolve().config
    assert config.encoder.occlusion_steps == steps


def test_a_wrong_camera_lists_the_cameras_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = write_camera_store(tmp_path / "arm.zarr", arm=True)
    assert main(["train", "--demos", str(store), "--images", "topp"]) == 2
    assert "no camera 'topp' in " in (found := capsys.readouterr().err)
    assert found.endswith("; did you mean top?; it has: top, wrist\n")
