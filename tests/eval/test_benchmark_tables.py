"""Tests of `--table` of benchmarks, which prints the tables of results that exist, and of their flags."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from nsde_policy.cli.main import main
from nsde_policy.cli.video_models import VideoTrain

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs a benchmark as a program, in this process."""

    def run(script: str, *flags: str) -> None:
        monkeypatch.syspath_prepend(BENCHMARKS)
        monkeypatch.setattr(sys, "argv", [script, *flags])
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")

    return run


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("tasks_suite.py", ["--table"]),
        ("pixels.py", ["--table", "missing.json"]),
        ("video.py", ["--table", "missing.json"]),
    ],
)
def test_a_missing_file_is_an_error_without_traceback(
    script: str,
    flags: list[str],
    run_script: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        run_script(script, *flags)
    assert f"{script}: error: --table: file not found: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--table", f"{BENCHMARKS}/results/video_pusht_eval.json"],
            "video_pusht_eval.json holds other results",
        ),
        (
            ["--table", f"{BENCHMARKS}/results/tasks.json"],
            "tasks.json holds other results: give a video.json",
        ),
        (["--table", f"{BENCHMARKS}/video.py"], "is not valid JSON"),
        (["scaling", "--variants", "PFI"], "unknown variants ['PFI'], choose from ['width 32, depth 3', "),
    ],
)
def test_bad_flags_of_the_video_benchmark_are_refused(
    flags: list[str], message: str, run_script: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        run_script("video.py", *flags)
    assert message in capsys.readouterr().err


def test_documented_flags_train_the_two_phases_of_the_benchmark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    found = {}
    monkeypatch.setattr(VideoTrain, "run", lambda self: found.update({self.method: self.config}))
    text = (BENCHMARKS.parent / "docs/video.md").read_text()
    commands = re.findall(r"`(video train collisions --method \S+ [^`]*--unroll.frames 4[^`]*)`", text)
    assert len(commands) == 2
    assert all(main(shlex.split(command)) == 0 for command in commands)
    variants = {each.name: each.config for each in import_module("video_variants").list_methods("default")}
    assert found["flow_matching"] == variants["Flow Matching, unrolled"]
    assert found["interpolants"] == variants["PFI, unrolled"]


def test_stored_scores_of_videos_are_printed_with_one_call_in_the_singular(
    run_script: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    run_script("video.py", "--table", str(BENCHMARKS / "results/video.json"))
    printed = capsys.readouterr().out
    assert "| 1 call, 12 frames |" in printed
    assert "| 2 calls, 12 frames |" in printed
    assert "1 calls" not in printed
    assert "| 30.30, 30.33, 30.26 |" in printed
    assert "| lost colour |" in printed
