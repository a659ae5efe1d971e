"""Tests for cli.py: help, errors in one line, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsde_policy import __version__
from nsde_policy.cli.main import main
from tests.helpers.demo_stores import write_store

ROOT = Path(__file__).parents[2]


def run(*args, env=None):
    command = [sys.executable, "-m", "nsde_policy.cli.main", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    "args", [["--help"], ["doctor", "--help"], ["data", "--help"], ["data", "info", "-h"]]
)
def test_help_answers_without_importing_anything_heavy(args):
    code = (
        "import sys\nfrom nsde_policy.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'gymnasium', 'zarr', 'pygame', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: nsde-policy" in done.stdout


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["doctor", "--jsn"], "perhaps you meant --json"),
        (["data", "info", "x.zarr", "--jason"], "perhaps you meant --json"),
        (["frobnicate"], "frobnicate"),
        (["docter"], "perhaps you meant doctor"),
        (["data", "inf", "x.zarr"], "perhaps you meant info"),
        (["doctor", "--hlp"], "perhaps you meant --help"),
        (["--versoin"], "perhaps you meant --version"),
        (["data", "replay", "x.zarr", "--out", "x.jpg"], "ends in .png"),
        (["data", "replay", "x.zarr", "--out", "/dev/null/x.png"], "/dev/null/x.png cannot be written"),
        (["data", "info"], "PATH"),
        (["data", "info", "a", "b"], "Unrecognized options: b; see nsde-policy data info --help"),
        (["data"], "see nsde-policy data --help"),
        (["eval", "--episodes", "x"], "'x'; see nsde-policy eval --help"),
        (["train", "--train.steps", "0"], ": train: need steps >= 1, got 0; see nsde-policy train"),
        (["eval", "--push", "-3"], "nsde-policy: need --push >= 0, got -3.0"),
        (["eval", "--obs-noise", "500"], "nsde-policy: need 0 <= --obs-noise < 100, got 500.0"),
        (["serve", "--max-clients", "0"], "nsde-policy: need --max-clients >= 1, got 0"),
        (["serve", "--deadline-s", "0"], "nsde-policy: need --deadline-s > 0, got 0.0"),
        ([], "data"),
        (["data", "info", "/nowhere/demos.zarr"], "/nowhere/demos.zarr"),
    ],
)
def test_bad_input_is_answered_in_one_line_with_exit_code_2(args, expected, capsys):
    assert main(args) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("nsde-policy: ")
    assert said.err.count("\n") == 1
    assert expected in said.err


def test_the_traceback_appears_with_debug_only():
    quiet, loud = run("data", "info", "/nowhere"), run("data", "info", "/nowhere", "--debug")
    assert (quiet.returncode, loud.returncode) == (2, 2)
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


def test_a_bug_is_called_one_and_exits_with_1(monkeypatch, capsys):
    def broken(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("nsde_policy.diagnostics.examine", broken)
    assert main(["doctor"]) == 1
    assert "unexpected ZeroDivisionError: oh (a bug; --debug shows where)" in capsys.readouterr().err


def test_doctor_finds_this_installation_in_good_health(capsys):
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings["packages"]["pymunk"]
    assert findings["devices"][0].startswith("cpu")
    assert len(findings["checks"]) >= 4
    assert all(check["ok"] for check in findings["checks"])


def test_doctor_says_what_is_wrong_and_exits_with_2(monkeypatch, capsys):
    def sick():
        raise OSError("no disk")

    monkeypatch.setitem(sys.modules["nsde_policy.diagnostics"].CHECKS, "frames draw", sick)
    assert main(["doctor"]) == 2
    said = capsys.readouterr()
    assert "FAILED frames draw: OSError: no disk" in said.out
    assert "frames draw" in said.err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_terminals_that_know_ascii_only_are_served_as_well(tmp_path, encoding):
    store = write_store(tmp_path / "demos.zarr")
    for args, code, expected in (
        (["data", "info", store], 0, "demos.zarr: zarr format 2"),
        (["data", "inf", store], 2, "nsde-policy: Unrecognized options: inf"),
    ):
        done = run(*args, env={**os.environ, "PYTHONIOENCODING": encoding})
        assert done.returncode == code
        assert expected in done.stdout + done.stderr


def test_version():
    assert run("--version").stdout == f"nsde-policy {__version__}\n"
