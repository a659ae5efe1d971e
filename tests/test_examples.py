"""Tests for examples/: run each of them."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.video.windows import open_videos

ROOT = Path(__file__).parents[1]


def run(name: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run an example in this process, which has imported torch already."""

    def run_main(name: str, *args: object) -> None:
        monkeypatch.syspath_prepend(ROOT / "examples")
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")

    return run_main


def test_recorded_demonstrations_load_and_a_second_recording_adds_what_is_missing(tmp_path: Path):
    out = tmp_path / "demos.zarr"
    for expected in (2, 2, 3):
        done = run("record_demonstrations.py", "--out", out, "--episodes", expected, "--steps", 20)
        assert done.returncode == 0, done.stderr
        demos = load_demonstrations(out)
        assert len(set(demos.episode_fingerprints)) == len(demos) == expected
        assert demos.angles == (4,)


def test_simulated_videos_can_be_trained_on(run_here: Callable[..., None], tmp_path: Path):
    run_here("collisions.py", tmp_path / "a.zarr", "--videos", 3, "--frames", 5, "--size", 16)
    videos = open_videos(tmp_path / "a.zarr", size=16)
    assert videos.lengths.tolist() == [5, 5, 5]
    assert videos.increment_std() > 0


def test_the_onnx_loop_runs_without_torch(shipped_graph: Path):
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['pygame'] = sys.modules['zarr'] = None\n"
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
    )
    args = [ROOT / "examples/onnx_loop.py", shipped_graph, "--episodes", "2"]
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rewards = [float(reward) for reward in re.findall(r"best reward ([\d.]+)", done.stdout)]
    assert len(rewards) == 2
    assert min(rewards) > 0.8


def test_the_control_loop_runs_at_the_policy_rate_and_above(
    run_here: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    for rate in (10, 100):
        run_here("control_loop.py", "--rate", rate, "--seconds", 1.5)
        printed = capsys.readouterr().out
        assert "missed deadlines" in printed
        assert "best reward" in printed
