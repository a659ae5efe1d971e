"""Tests for nsde_policy/assets: how shipped policies are found."""

import shutil
from pathlib import Path

import pytest

from nsde_policy.assets import SHIPPED_POLICY, find_shipped, get_shipped_name, resolve_run
from nsde_policy.cli.main import main
from nsde_policy.errors import ConfigError
from nsde_policy.inference.policy import Policy


def test_a_folder_beside_the_shipped_policy_is_found(pixel_run: Path, tmp_path: Path):
    added = tmp_path / "pusht_pixels"
    shutil.copytree(pixel_run, added)
    assert find_shipped("pixels", folder=tmp_path) == added
    assert resolve_run(Path("shipped-pixels"), folder=tmp_path) == added
    assert get_shipped_name(added, folder=tmp_path) == "shipped-pixels"
    assert Policy.from_pretrained(find_shipped("pixels", folder=tmp_path)).spec.cameras
    with pytest.raises(ConfigError, match="available: state, pixels"):
        find_shipped("sounds", folder=tmp_path)


def test_other_names_are_run_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve_run(Path("shipped")) == SHIPPED_POLICY
    assert get_shipped_name(None) == get_shipped_name(SHIPPED_POLICY) == "shipped"
    assert get_shipped_name(tmp_path / "pusht_pixels") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shipped-pixels").mkdir()
    assert resolve_run(Path("shipped-pixels")) == Path("shipped-pixels")


@pytest.mark.parametrize("command", ["play", "eval"])
def test_observations_without_a_shipped_policy_are_refused(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main([command, "--obs", "sounds"]) == 2
    assert "no policy for the observations 'sounds'; available: state" in capsys.readouterr().err
    assert main([command, str(tmp_path), "--obs", "pixels"]) == 2
    assert f"leave it out, or {tmp_path}" in capsys.readouterr().err
