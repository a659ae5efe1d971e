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
