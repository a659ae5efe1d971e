"""Tests for nsde_policy/cli/main.py: help, error messages, exit codes, logging."""

import json
import logging
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from nsde_policy import __version__
from nsde_policy.cli.main import main
from tests.helpers.demo_stores import write_store

ROOT = Path(__file__).parents[2]


def run(*args, env=None):
    command = [sys.executable, "-m", "nsde_policy.cli.main", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)


def test_help_imports_no_heavy_package():
    usages = {
        "--help": "nsde-policy [-h] {train,",
        "doctor --help": "nsde-policy doctor",
        "data --help": "nsde-policy data [-h] {info,",
        "data info -h": "nsde-policy data info",
        "train --preset fast --help": "nsde-policy train",
    }
    code = (
        "import sys\nfrom nsde_policy.cli.main import main\nfor args in sys.argv[1:]:\n"
        "    assert main(args.split()) == 0, args\n"
        "    heavy = {'torch', 'gymnasium', 'zarr', 'pygame', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, f'{args}: {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *usages], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [usage for usage in usages.values() if f"usage: {usage}" not in done.stdout] == []


def test_help_lists_all_settings_of_the_named_method(capsys):
    assert main(["train", "--policy", "knn", "--model.sampling.k", "3", "--help"]) == 0
    assert "--model.sampling.k INT" in capsys.readouterr().out
    assert main(["train", "--help"]) == 0
    assert "--model.sampling.k INT" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["doctor", "--jsn"], ["--jsn", "Perhaps you meant", "--json", "nsde-policy doctor --help"]),
        (["data", "info", "x.zarr", "--jason"], ["Perhaps you meant", "--json"]),
        (["docter"], ["docter", "Available subcommands", "doctor"]),
        (["data", "inf", "x.zarr"], ["inf", "info, check, replay, download"]),
        (["data", "info"], ["PATH"]),
        (["data", "info", "a", "b"], ["Unrecognized options: b", "nsde-policy data info --help"]),
        (["data"], ["nsde-policy data --help"]),
        (["eval", "--episodes", "x"], ["--episodes", "'x'", "nsde-policy eval --help"]),
        (["train", "--train.steps", "0"], ["need steps >= 1, got 0", "nsde-policy train --help"]),
        (["train", "--preset"], ["--preset"]),
        (["train", "--policy", "telepathy"], ["telepathy", "neural_sde"]),
        ([], ["train, eval, data"]),
    ],
)
def test_unknown_flags_and_values_are_reported_by_tyro_with_exit_code_2(args, expected, capsys):
    assert main(args) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    for text in expected:
        assert text in output.err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["eval", "--push", "-3"], "nsde-policy: need --push >= 0, got -3.0"),
        (["eval", "--obs-noise", "500"], "nsde-policy: need --obs-noise < 100, got 500.0"),
        (["serve", "--max-clients", "0"], "nsde-policy: need --max-clients >= 1, got 0"),
        (["serve", "--deadline-s", "0"], "nsde-policy: need --deadline-s > 0, got 0.0"),
        (["data", "info", "/nowhere/demos.zarr"], "/nowhere/demos.zarr"),
        (["train", "--preset", "nope"], "no preset 'nope'"),
        (["collect", "--out", "x.zarr", "--chunk", "3"], "--chunk requires --policy RUN"),
    ],
)
def test_invalid_input_is_reported_in_one_line_with_exit_code_2(args, expected, capsys):
    assert main(args) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("nsde-policy: ")
    assert output.err.count("\n") == 1
    assert expected in output.err


def test_only_debug_shows_the_traceback(capsys):
    for flags in ([], ["--debug"]):
        assert main(["data", "info", "/nowhere", *flags]) == 2
        assert ("Traceback" in capsys.readouterr().err) == bool(flags)


def test_a_bug_exits_with_code_1_and_names_the_exception(monkeypatch, capsys):
    def fail(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("nsde_policy.diagnostics.diagnose", fail)
    assert main(["doctor"]) == 1
    assert "unexpected ZeroDivisionError: oh (a bug; --debug shows where)" in capsys.readouterr().err


def test_doctor_passes_all_checks_here(capsys):
    assert main(["doctor", "--json"]) == 0
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["packages"]["pymunk"]
    assert diagnosis["devices"][0].startswith("cpu")
    assert len(diagnosis["checks"]) >= 4
    assert all(check["ok"] for check in diagnosis["checks"])


def test_doctor_names_a_failed_check_and_exits_with_code_2(monkeypatch, capsys):
    def fail():
        raise OSError("no disk")

    monkeypatch.setitem(sys.modules["nsde_policy.diagnostics"].CHECKS, "drawing", fail)
    assert main(["doctor"]) == 2
    output = capsys.readouterr()
    assert "FAILED drawing: OSError: no disk" in output.out
    assert "1 of 4 checks failed: drawing" in output.err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_works_on_ascii_terminals(tmp_path, encoding):
    store = write_store(tmp_path / "demos.zarr")
    for args, code, expected in (
        (["data", "info", store], 0, "demos.zarr: zarr format 2"),
        (["data", "inf", store], 2, "Unrecognized options: inf"),
    ):
        done = run(*args, env={**os.environ, "PYTHONIOENCODING": encoding})
        assert done.returncode == code
        assert expected in done.stdout + done.stderr


def test_library_log_messages_go_to_stderr_once(capsys):
    for _ in range(2):
        assert main(["--version"]) == 0
        assert main(["data", "info", "/nowhere"]) == 2
    capsys.readouterr()
    logging.getLogger("nsde_policy.training.progress").info("step 5")
    assert capsys.readouterr().err == "step 5\n"


def test_version():
    assert run("--version").stdout == f"nsde-policy {__version__}\n"


def test_lock_of_progress_bars_is_not_shared_with_other_processes():
    main(["data", "info", "nowhere.zarr"])
    context = multiprocessing.get_context("fork")
    child = context.Process(target=hold_lock_of_progress_bars)
    child.start()
    child.join()
    assert tqdm.get_lock().acquire(blocking=False)
    tqdm.get_lock().release()


def hold_lock_of_progress_bars() -> None:
    tqdm.get_lock().acquire()
    os._exit(0)
