"""Bad invocations: devices, numbers, paths and streams that no command can use, and Ctrl-C at any time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nsde_policy.cli.main import main

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "nsde_policy.cli"]


def refuse(args, capsys):
    """Run a command that must be refused, and return its error."""
    assert main(args) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("nsde-policy: ")
    assert output.err.count("\n") == 1
    return output.err


DEVICE_COMMANDS = (
    *("train", "eval", "compare shipped", "report shipped", "serve"),
    *("eval --demos x.zarr", "video train collisions", "video eval run"),
)


@pytest.mark.parametrize(
    ("command", "device"),
    [
        *((command, "cuda:99") for command in DEVICE_COMMANDS),
        *(("eval", d) for d in ("mps", "gpu", "meta", "")),
    ],
)
def test_a_device_that_torch_cannot_use_is_refused_before_the_work(command, device, capsys):
    error = refuse([*command.split(), "--device", device], capsys)
    assert f"device {device!r} cannot be used here" in error
    assert "--device cpu" in error


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("eval --seed-start -1", "need --seed-start >= 0, got -1"),
        (f"eval --seed-start {2**64}", "need --seed-start <= 9,223,372,036,854,775,807"),
        ("eval --episodes 0", "need --episodes >= 1"),
        ("eval --chunk 0", "need --chunk >= 1"),
        ("eval --workers -1", "need --workers >= 0"),
        ("eval --alpha nan", "--alpha must be finite, got nan"),
        ("eval --camera-noise inf", "--camera-noise must be finite"),
        (f"eval --latency-steps {'9' * 400}", "--latency-steps must be below 2**63, got 999999999999"),
        ("train --seed -1", "need --seed >= 0"),
        ("train --validation nan", "--validation must be finite"),
        ("export --seed -1", "need --seed >= 0"),
        ("data set-rate x.zarr nan", "--rate must be finite"),
        ("serve --patience-s inf", "--patience-s must be finite"),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_its_flag(args, expected, capsys):
    assert expected in refuse(args.split(), capsys)


FOLDER_COMMANDS = (
    *("compare shipped --out NAME", "eval NAME", "data info NAME"),
    "collect --policy shipped --out NAME --episodes 1",
)
FILE_COMMANDS = ("report shipped --out NAME", "export --out NAME.onnx", "eval --json NAME")


@pytest.mark.parametrize(
    ("command", "length"),
    [
        *((command, length) for command in (*FOLDER_COMMANDS, *FILE_COMMANDS) for length in (300, 5000)),
        *((command, 245) for command in FILE_COMMANDS),  # the partial file's name would be too long
    ],
)
def test_a_name_that_is_too_long_is_refused(command, length, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "ame too long" in refuse(command.replace("NAME", "n" * length).split(), capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_comparison_leaves_no_folder(capsys, tmp_path):
    refuse(["compare", str(tmp_path / "missing"), "--out", str(tmp_path / "a" / "b")], capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_not_utf8_is_refused(capsys):
    assert r"'run\udcff' is not UTF-8" in refuse(["report", "run\udcff"], capsys)


def test_an_error_is_one_line_without_control_characters(capsys):
    assert "/no/a\\x1b[31m b does not exist" in refuse(["data", "info", "/no/a\x1b[31m\nb"], capsys)


@pytest.mark.parametrize(
    ("line", "code", "error"),
    [
        ("--version >&-", 0, ""),
        ("--version 2>&-", 0, ""),
        ("data info /nowhere 2>&-", 2, ""),
        ("data info /nowhere <&- >&- 2>&-", 2, ""),
        ("data info /nowhere 2>/dev/full", 2, ""),
        ("--version >/dev/full", 2, "nsde-policy: the output cannot be written: No space left on device\n"),
        ("--help | true", 141, ""),
    ],
)
def test_standard_streams_may_be_closed_or_full(line, code, error):
    line = " ".join(PROGRAM) + " " + line
    script = f"set -o pipefail; {line}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == error
    assert done.returncode == code


@pytest.mark.parametrize("module", ["tyro", "torch"])
def test_an_interrupt_during_imports_is_quiet(module, tmp_path):
    """The interrupt comes while the commands, or what one of them needs, are imported."""
    fake = "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\n"
    fake += "except KeyboardInterrupt: raise ImportError('a library may say anything')\n"
    (tmp_path / f"{module}.py").write_text(fake)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*PROGRAM, "eval"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=env,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs ignore it
    )
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr in ("", "nsde-policy: interrupted\n")
