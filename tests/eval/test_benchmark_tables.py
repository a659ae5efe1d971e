"""Tests of `--table` of benchmarks, which prints the tables of results that exist."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "flags"),
    [("tasks_suite.py", ["--table"]), ("pixels.py", ["--table", "missing.json"])],
)
def test_a_missing_file_is_an_error_without_traceback(script: str, flags: list[str], tmp_path: Path):
    call = [sys.executable, str(BENCHMARKS / script), *flags]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{script}: error: --table: file not found: " in done.stderr
    assert "Traceback" not in done.stderr


def test_stored_scores_of_videos_are_printed_with_one_call_in_the_singular():
    call = [sys.executable, str(BENCHMARKS / "video.py"), "--table", str(BENCHMARKS / "results/video.json")]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert "| 1 call, 12 frames |" in done.stdout
    assert "| 2 calls, 12 frames |" in done.stdout
    assert "1 calls" not in done.stdout
