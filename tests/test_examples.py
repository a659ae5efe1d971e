"""Tests for examples/: run each of them."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_arm import play_expert
from teleoperated_arm import CLOSED, TeleoperatedArm

from nsde_policy.data import load_demonstrations
from nsde_policy.data.readers import open_source

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run an example in this process, which has imported torch already."""

    def run_main(name: str, *args: object) -> None:
        monkeypatch.syspath_prepend(ROOT / "examples")
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")

    return run_main


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_help_of_every_example_begins_with_its_docstring(
    path: Path, run_here: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    with suppress(SystemExit):
        run_here(path.name, "--help")
    title = path.read_text().split('"""')[1].splitlines()[0]
    assert title.split(":")[0] in " ".join(capsys.readouterr().out.split())


def test_recorded_demonstrations_load_and_a_second_recording_adds_what_is_missing(
    run_here: Callable[..., None], tmp_path: Path
):
    out = tmp_path / "demos.zarr"
    for expected in (2, 2, 3):
        run_here("record_demonstrations.py", "--out", out, "--episodes", expected, "--steps", 20)
        demos = load_demonstrations(out)
        assert len(set(demos.episode_fingerprints)) == len(demos) == expected
        assert demos.angles == (4,)


def test_the_control_loop_of_an_exported_policy_needs_no_torch(shipped_graph: Path):
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['pygame'] = sys.modules['zarr'] = None\n"
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
    )
    args = [
        ROOT / "examples/control_loop.py",
        "--policy",
        shipped_graph,
        "--simulated-time",
        "--seconds",
        "30",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (reward,) = re.findall(r"best reward ([\d.]+)", done.stdout)
    assert float(reward) > 0.8


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arm_with_gripper.py", "action 6 is always 0 or 1\ndelivered the block in"),
        ("delta_actions.py", "changes per period: actions [0, 1, 2, 3, 4, 5]\ndelivered the block in"),
        ("mobile_base.py", "distance to the goal, metres: "),
        ("two_cameras.py", " 0 held,"),
    ],
)
def test_robots_of_each_kind_are_recorded_trained_and_driven(
    name: str,
    expected: str,
    run_here: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    run_here(name, tmp_path / "out", "--episodes", 3, "--steps", 3, "--trials", 1)
    assert expected in capsys.readouterr().out
    if name == "arm_with_gripper.py":
        run_here("remote_gpu.py", "--run", tmp_path / "out/run", "--trials", 1)
        printed = capsys.readouterr().out
        assert printed.startswith("RemotePolicy(neural_sde, 9 → 7, 20 Hz, chunk 4)\ndelivered the block in")


def test_a_person_delivers_the_block_and_corrects_near_misses():
    arms = [TeleoperatedArm(seed) for seed in range(40)]
    misses = np.array([arm.person.error.any() for arm in arms])
    closed = [play_expert(arm)[0].act[:, -1] <= CLOSED for arm in arms]
    closings = np.array([(is_closed[1:] > is_closed[:-1]).sum() for is_closed in closed])
    assert sum(arm.delivered for arm in arms) >= 38
    assert 5 < misses.sum() < 20
    assert (closings == 1 + misses).mean() > 0.9


def test_a_frame_of_the_teleoperated_arm_repeats_once(run_here: Callable[..., None], tmp_path: Path):
    run_here("teleoperated_arm.py", tmp_path / "arm.zarr", "--episodes", 1, "--cameras", "wrist")
    with open_source(tmp_path / "arm.zarr") as source:
        frames = source.open_array("wrist")[:60]
        assert source.rate_hz == 30
    is_new = (frames[1:] != frames[:-1]).any((1, 2, 3))
    assert not is_new[::2].any()
    assert is_new[1::2].mean() > 0.9


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
def test_the_cells_of_the_quick_start_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples/quickstart.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        exec("".join(cell["source"]), names)
        names |= {"STEPS": 3, "EPISODES": 2, "TICKS": 3}
    assert [episode.seed for episode in names["scores"].episodes] == [100_000, 100_001]
    assert "the 44 of 220 episodes" in repr(names["score"])
    assert names["session"].report().commands == 3
    assert all(not cell.get("outputs") for cell in cells), "clear the outputs before you commit"
