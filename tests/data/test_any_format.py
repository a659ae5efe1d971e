"""The same demonstrations in three formats: the same training data, weights and commands."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from nsde_policy import Policy
from nsde_policy.assets import EMBEDDED_DEMOS
from nsde_policy.cli.main import main
from nsde_policy.data import Demonstrations, DemoWriter, load_demonstrations, open_images
from nsde_policy.errors import DemoError
from tests.helpers.lerobot_sets import DATA, VIDEO, WRIST, write_v3
from tests.helpers.robot_arm import make_arm_demos

FORMATS = ("zarr", "hdf5", "lerobot")
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"


def write_hdf5(path: Path, demos: Demonstrations, cameras: dict[str, np.ndarray]) -> None:
    """Write demonstrations as robomimic does."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": demos.rate_hz}})
        for k, (start, episode) in enumerate(zip(demos.starts, demos, strict=True)):
            group = data.create_group(f"demo_{k}")
            group.attrs["num_samples"] = len(episode)
            group["actions"], group["obs/state"] = episode.act, episode.obs
            for name, frames in cameras.items():
                group[f"obs/{name}"] = frames[start : start + len(episode)]


def write_formats(folder: Path, demos: Demonstrations, cameras: dict[str, np.ndarray]) -> dict[str, Path]:
    """Write demonstrations in all formats."""
    paths = {name: folder / f"demos.{name}" for name in FORMATS}
    with DemoWriter(paths["zarr"], rate_hz=demos.rate_hz) as writer:
        for start, episode in zip(demos.starts, demos, strict=True):
            extras = {name: frames[start : start + len(episode)] for name, frames in cameras.items()}
            writer.append(episode, extras)
    write_hdf5(paths["hdf5"], demos, cameras)
    assert main(["data", "convert", str(paths["zarr"]), str(paths["lerobot"]), "--to", "lerobot"]) == 0
    return paths


def test_the_same_demonstrations_have_the_same_fingerprint_in_every_format(tmp_path: Path) -> None:
    demos = load_demonstrations(EMBEDDED_DEMOS).take(3)
    paths = write_formats(tmp_path, demos, {})
    copies = [load_demonstrations(path, angles=demos.angles) for path in paths.values()]
    assert {copy.fingerprint for copy in copies} == {demos.fingerprint}
    assert {copy.episode_fingerprints for copy in copies} == {demos.episode_fingerprints}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hdf5", "lerobot"])
def test_an_arm_with_two_cameras_is_trained_scored_and_exported(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], onnx_operators: None
) -> None:
    demos = make_arm_demos(episodes=6, seconds=1.5)
    rng = np.random.default_rng(0)
    cameras = {key: rng.integers(0, 256, (len(demos.obs), 32, 48, 3), np.uint8) for key in ("top", "wrist")}
    path = str(write_formats(tmp_path, demos, cameras)[name])
    assert main(["data", "info", path]) == 0
    shown = capsys.readouterr().out
    run = str(tmp_path / "run")
    flags = ["--validation", "0.2", "--steps", "3", "--width", "16", "--select", "none"]
    flags += ["--encoder", "keypoints", "--encoder.keypoints", "4", "--encoder.width", "8"]
    flags += ["--encoder.train.steps", "3", "--encoder.size", "32"]
    train = shown.splitlines()[-1].removeprefix("with cameras: nsde-policy ").split()
    assert main([*train, *flags, "--out", run]) == 0
    cameras_of_policy = [camera.name for camera in Policy.from_pretrained(run).spec.cameras]
    assert cameras_of_policy == ["observation.images.top", "observation.images.wrist"]
    assert main(["score", run, "--demos", path, "--samples", "2", "--stride", "9"]) == 0
    if name == "hdf5":
        return  # an export does not depend on the format
    assert main(["export", run, "--cases", "4"]) == 0
    assert {"policy.onnx", "policy.encoder.onnx"} <= {file.name for file in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize("name", ["demos.hdf5", "demos.npz", "demos.zarr.zip", "demos.csv", DATA, VIDEO])
def test_a_file_that_git_lfs_did_not_fetch_is_named(name: str, tmp_path: Path) -> None:
    path = write_v3(tmp_path) if name in (DATA, VIDEO) else tmp_path / name
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(DemoError, match=f"{name} is a git-LFS pointer, .*; run `git lfs pull`"):
        open_images(path, key=WRIST) if name == VIDEO else load_demonstrations(path)
