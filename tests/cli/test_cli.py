"""Tests for nsde_policy/cli/main.py: help, error messages, exit codes, standard streams, logging."""

import logging
import multiprocessing
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from tqdm import tqdm

from nsde_policy import __version__
from nsde_policy.cli.main import main, show_log
from tests.helpers.demo_stores import write_store

ROOT = Path(__file__).parents[2]
INFO = "data info nsde_policy/assets/pusht_demos.zarr.zip"

NEEDS_CPU_TORCH = pytest.mark.skipif(not version("torch").endswith("+cpu"), reason="torch may have CUDA")


@pytest.mark.parametrize("command", ["eval", "tune"])
def test_torchrun_starts_only_what_trains_in_several_processes(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", "0")
    assert main(command.split()) == 2
    assert "nsde-policy (rank 0): torchrun " in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "is_shown"), [("0", True), ("1", False)])
def test_only_rank_0_of_torchrun_shows_the_log(rank: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", rank)
    package = logging.getLogger("nsde_policy")
    monkeypatch.setattr(package, "handlers", [])
    level = package.level
    try:
        show_log()
        assert package.isEnabledFor(logging.INFO) == is_shown
    finally:
        package.setLevel(level)


def test_a_reader_may_close_the_output():
    script = f"unset PYTHONUNBUFFERED; set -o pipefail; {sys.executable} -m nsde_policy {INFO} | true"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_pages_are_short(capsys):
    for command, most in (("--help", 30), ("train --help", 60)):
        assert main(command.split()) == 0
        assert len(capsys.readouterr().out.splitlines()) <= most


def test_help_imports_no_heavy_package():
    usages = {
        "--help": "nsde-policy [-h]",
        "doctor --help": "nsde-policy doctor",
        "data --help": "nsde-policy data [-h]",
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
    assert main(["train", "--policy", "bet", "--model.bins", "3", "--help-all"]) == 0
    assert "--model.bins INT" in capsys.readouterr().out
    assert main(["train", "--help-all"]) == 0
    assert "--model.bins INT" not in capsys.readouterr().out
    assert main(["tune", "--help-all"]) == 0
    help_text = capsys.readouterr().out
    assert "--trials INT" in help_text
    assert "--model.noise FLOAT" in help_text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("trian", "did you mean train"),
        ("data inof", "data has no command 'inof'.*did you mean info"),
        ("train --dataset x", "use --demos"),
        ("train --demos pusht.zarr", "data download pusht --out pusht.zarr"),
        ("train --demos demos.zar", "did you mean demos.zarr"),
        ("eval runs/nothing", "runs/nothing does not exist; there are runs/first"),
        ("eval runs/first", "no environment: give one with --env, or score recorded episodes"),
        ("compare shipped runs/first", "runs/first was trained without a task"),
        ("export runs", "runs is not a run directory.*there are runs/first"),
        ("collect --out new --policy my:Expert", "needs an environment: give one with --env"),
        ("data convert arm.npz new.zarr --obs-keys joints", "no array 'joints'.*use --obs-keys state"),
        pytest.param(
            "eval --device cuda", "torch is built without CUDA.*--device cpu", marks=NEEDS_CPU_TORCH
        ),
    ],
)
def test_slips_are_answered_before_torch_is_imported(args, message, tmp_path):
    (tmp_path / "demos.zarr").mkdir()
    (tmp_path / "runs/first").mkdir(parents=True)
    (tmp_path / "runs/first/config.json").write_text('{"task": "none"}')
    arrays = {"state": np.zeros((8, 6)), "action": np.zeros((8, 3)), "episode_ends": np.array([4, 8])}
    np.savez(tmp_path / "arm.npz", **arrays)
    code = (
        "import sys\nfrom nsde_policy.cli.main import main\nassert main(sys.argv[1:]) == 2\n"
        "assert not {'torch', 'gymnasium', 'zarr', 'pygame'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, *args.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(message, done.stderr)
    assert {path.name for path in tmp_path.iterdir()} == {"demos.zarr", "runs", "arm.npz"}


def test_only_debug_shows_the_traceback(capsys):
    for flags in ([], ["--debug"]):
        assert main(["data", "info", "/nowhere", *flags]) == 2
        assert ("Traceback" in capsys.readouterr().err) == bool(flags)


def test_a_bug_exits_with_code_1_and_names_the_exception(monkeypatch, capsys):
    def fail(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("nsde_policy.cli.diagnostics.diagnose", fail)
    assert main(["doctor"]) == 1
    assert "unexpected ZeroDivisionError: oh (a bug; --debug shows where)" in capsys.readouterr().err


def test_doctor_passes_all_checks_here_and_names_a_failed_one(monkeypatch, capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  pymunk ") and "not installed" not in line for line in lines)
    assert lines[lines.index("devices") + 1].startswith("  cpu")
    assert len(lines[lines.index("checks") + 1 :]) == sum(line.startswith("  ok ") for line in lines) == 2

    def fail():
        raise OSError("no disk")

    monkeypatch.setitem(sys.modules["nsde_policy.cli.diagnostics"].CHECKS, "environment", fail)
    assert main(["doctor"]) == 2
    output = capsys.readouterr()
    assert "FAILED environment: OSError: no disk" in output.out
    assert "1 of 2 checks failed: environment" in output.err


def test_library_log_messages_go_to_stderr_once(capsys):
    for _ in range(2):
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"nsde-policy {__version__}\n"
    logging.getLogger("nsde_policy.training.recorder").info("step 5")
    assert capsys.readouterr().err == "step 5\n"


def test_lock_of_progress_bars_is_not_shared_with_other_processes():
    main(["--version"])
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: tqdm.get_lock().acquire() and os._exit(0))
    child.start()
    child.join()
    assert tqdm.get_lock().acquire(blocking=False)
    tqdm.get_lock().release()


@pytest.mark.parametrize(
    ("package", "args", "install"),
    [
        ("websockets", "data view demos.zarr", "websockets"),
        ("optuna", "tune", "'optuna>=4.0'"),
        ("ray", "eval --ray local", "'ray>=2.40'"),
    ],
)
def test_a_missing_package_is_named_before_torch_is_imported(package, args, install, tmp_path: Path):
    write_store(tmp_path / "demos.zarr", {})
    code = (
        "import sys; from nsde_policy.cli.main import main\nsys.modules[sys.argv.pop(1)] = None\n"
        "code = main(); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", code, package, *args.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    expected = f"this needs {package}, which is not installed: pip install {install}"
    assert done.stderr == f"nsde-policy: {expected}\n"
