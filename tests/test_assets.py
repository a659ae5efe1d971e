"""Tests for nsde_policy/assets: how shipped policies are found, and what frames the camera policy takes."""

import typing
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.assets import SHIPPED_POLICIES, get_shipped_name, resolve_run
from nsde_policy.bounds import Occluder
from nsde_policy.cli.main import main
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.eval.disturbances import CameraCondition, CameraDisturbances
from nsde_policy.inference.policy import Policy
from nsde_policy.planner.observation import find_implausible_frame


def test_shipped_policies_have_names_that_run_directories_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert get_shipped_name(None) == "shipped"
    for name, path in (
        ("shipped", SHIPPED_POLICIES["state"]),
        ("shipped-pixels", SHIPPED_POLICIES["pixels"]),
    ):
        assert resolve_run(Path(name)) == path
        assert get_shipped_name(path) == name
        assert (path / "config.json").is_file()
    assert get_shipped_name(tmp_path / "pusht_pixels") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shipped-pixels").mkdir()
    assert resolve_run(Path("shipped-pixels")) == Path("shipped-pixels")


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("kind", typing.get_args(Occluder))
def test_frames_with_hidden_parts_are_plausible(kind: Occluder, share: float):
    policy = Policy.from_pretrained("shipped-pixels")
    (seen,) = policy.calibration.frames
    frame = benchmark_frame(np.array([100.0, 100.0]), np.array([256.0, 256.0, 0.5]))
    for seed in range(5):
        disturbed = CameraDisturbances(CameraCondition(occlusion=share, occluder=kind), seed)
        hidden = disturbed.change_frame(frame, 1)
        dark = np.where((hidden == frame).all(-1, keepdims=True), frame, 0)
        assert not find_implausible_frame(hidden, seen)
        assert not find_implausible_frame(dark, seen)


@pytest.mark.parametrize("command", ["play", "eval"])
def test_observations_without_a_shipped_policy_are_refused(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main([command, "--obs", "sounds"]) == 2
    assert "no policy for the observations 'sounds'; available: state" in capsys.readouterr().err
    (tmp_path / "config.json").touch()
    assert main([command, str(tmp_path), "--obs", "pixels"]) == 2
    assert f"leave it out, or {tmp_path}" in capsys.readouterr().err
