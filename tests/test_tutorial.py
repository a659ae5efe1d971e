"""Run the tutorial docs/your_robot.md, command by command, with less data and training."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from nsde_policy.cli.main import NSDE_POLICY, main
from tests.helpers.doc_pages import code_blocks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/your_robot.md"
LESS = {
    "simulated_arm.py": "--episodes 5",
    "train": "--steps 3 --width 16 --select none --encoder.train.steps 3 --encoder.size 32",
    "score": "--samples 2 --stride 40",
    "export": "--cases 4",
}
"""Flags that make a command quick; those given last win."""


def find_commands() -> list[list[str]]:
    """Return the commands of the page."""
    lines = [line for block in code_blocks(PAGE, "bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


def blank_numbers(text: str) -> str:
    """Replace numbers, so that outputs of different data can be compared."""
    return re.sub(r"[−-]?\d[\d.e]*", "N", text)


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    onnx_operators: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    commands = find_commands()
    printed = ""
    for program, *args in commands:
        if program == "nsde-policy" and args[:2] == ["data", "view"]:
            NSDE_POLICY.parse(args)  # tests/viewer opens the page
        elif program == "nsde-policy":
            assert main([*args, *shlex.split(LESS.get(args[0], ""))]) == 0, args
        elif program == "python" and (ROOT / args[0]).is_file():
            monkeypatch.setattr(sys, "argv", [*args, *shlex.split(LESS[Path(args[0]).name])])
            runpy.run_path(str(ROOT / args[0]), run_name="__main__")
        printed += capsys.readouterr().out
    (loop,) = code_blocks(PAGE, "python")
    exec(loop, {})
    printed += capsys.readouterr().out
    record, info, check, _, _, _, export, _ = code_blocks(PAGE, "text")
    found = blank_numbers(printed).splitlines()
    for line in blank_numbers(record + info + check + export).splitlines():
        assert line == "..." or line in found
    assert re.search(r"^\d+ commands in .* s: .* Hz", printed, re.MULTILINE)
