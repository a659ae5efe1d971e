"""Tests of `--table` of benchmarks, which prints the tables of results that exist, and of their flags."""

import argparse
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from nsde_policy.cli.main import main
from nsde_policy.cli.video_models import VideoTrain
from tests.helpers.robot_arm import write_arm_store
from tests.helpers.toy_problems import make_robot_demos

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs a benchmark as a program, in this process."""

    def run(script: str, *flags: str) -> None:
        monkeypatch.syspath_prepend(BENCHMARKS)
        monkeypatch.setattr(sys, "argv", [script, *flags])
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")

    return run


TABLES = {
    "auto_settings.py": "auto_settings.json",
    "avoiding_settings.py": "avoiding_settings.json",
    "g1_offline.py": "g1_offline_0.json",
    "metaworld_suite.py": "metaworld.json",
    "pixels.py": "pixels.json",
    "pusht_runs.py": "pusht_runs.json",
    "tasks_suite.py": "tasks_chunks.json",
    "video.py": "video.json",
}
"""Benchmarks with `--table`, and a file of their results."""


@pytest.mark.parametrize("script", TABLES)
def test_table_of_another_file_is_an_error_without_traceback(
    script: str, run_script: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    others = {str(BENCHMARKS / "results" / name): "holds other results" for name in TABLES.values()}
    del others[str(BENCHMARKS / "results" / TABLES[script])]
    others |= {str(tmp_path / "missing.json"): "file not found: ", f"{BENCHMARKS}/video.py": "not valid JSON"}
    for file, message in others.items():
        with pytest.raises(SystemExit, match="2"):
            run_script(script, "--table", file)
        printed = capsys.readouterr()
        assert f"{script}: error: --table: " in printed.err
        assert message in printed.err
        assert file in printed.err
        assert not printed.out


@pytest.mark.parametrize("script", TABLES)
def test_table_of_stored_results_is_printed(
    script: str, run_script: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    copy = tmp_path / "results.json"
    copy.write_bytes((BENCHMARKS / "results" / TABLES[script]).read_bytes())
    run_script(script, "--table", str(copy))
    assert capsys.readouterr().out.count("\n") > 4


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        ("video.py", ["scaling", "--variants", "PFI"], "unknown variants ['PFI'], choose from ['width 32, "),
        ("tasks_suite.py", ["--rows", "knn", "nosuchrow"], "no row is called 'nosuchrow'; rows: neural_sde"),
        ("tasks_suite.py", ["--chunks", "0"], "--chunks: expected a whole number of at least 1, got '0'"),
        ("tasks_suite.py", ["--examples", "-1"], "--examples: expected at least 0, got -1"),
        ("tasks_suite.py", ["--plots", "x"], "--plots draws the results of --table"),
        ("tasks_suite.py", ["--unpack", "x.zip"], "--unpack: x.zip is not a zip file"),
        ("tasks_suite.py", ["--tasks", "adroit-door"], "adroit-door needs the folder of its store"),
        ("avoiding_settings.py", ["--settings"], "--settings: expected at least one argument"),
        (
            "avoiding_settings.py",
            ["--train-seeds", "0"],
            "--train-seeds: expected a whole number of",
        ),
        ("avoiding_settings.py", ["--episodes", "many"], "a whole number of at least 1, got 'many'"),
        ("g1_offline.py", ["--demos", "x.zarr", "--methods"], "--methods: expected at least one argument"),
        ("g1_offline.py", ["--demos", "x.zarr"], "x.zarr does not exist"),
        (
            "g1_offline.py",
            ["--demos", "x.zarr", "--seed", "-1"],
            "--seed: expected a whole number of",
        ),
    ],
)
def test_bad_flags_of_benchmarks_are_refused(
    script: str,
    flags: list[str],
    message: str,
    run_script: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit, match="2"):
        run_script(script, *flags)
    assert message in capsys.readouterr().err


def find_benchmark_commands() -> list[str]:
    """Return the arguments of `python` in README and docs that run a benchmark with flags."""
    found = set[str]()
    for page in (BENCHMARKS.parent / "README.md", *(BENCHMARKS.parent / "docs").glob("*.md")):
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(r"^python (benchmarks/\w+\.py .*--.*)", text, re.MULTILINE)
        inline = re.findall(r"`python (benchmarks/\w+\.py [^`]*--[^`]*)`", text)
        found |= {command.partition(" #")[0] for command in (*lines, *inline)}
    return sorted(found)


class ParsedError(Exception):
    """Raised in place of the work of a benchmark when its flags are parsed."""


@pytest.mark.parametrize("command", find_benchmark_commands())
def test_benchmarks_have_the_flags_and_names_of_documented_commands(
    command: str, run_script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    parse_args = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser) -> None:
        parse_args(parser)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    script, *flags = shlex.split(command)
    with pytest.raises(ParsedError):
        run_script(Path(script).name, *flags)


@pytest.fixture(scope="module")
def robot_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a store of 20 episodes without a task."""
    demos = replace(make_robot_demos(20), rate_hz=20.0)
    return write_arm_store(tmp_path_factory.mktemp("robot") / "robot.zarr", demos)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("nosuch", "unknown method 'nosuch'; available: bet, "),
        ("mip:steps=abc", "steps must be an integer, got 'abc'"),
        ("mip:steps", "'steps' has no value; write steps=VALUE"),
        ("mip:nosuch=1", "MIPConfig has no setting 'nosuch'"),
        ("diffusion:preset=nosuch", "no preset 'nosuch' for task none, method diffusion; available: default"),
        ("neural_sde:history_noise=loud", "history_noise must be one of 'independent'"),
    ],
)
def test_bad_methods_of_offline_scores_are_refused_before_training(
    method: str,
    message: str,
    robot_store: Path,
    run_script: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    flags = ["--demos", str(robot_store), "--out", str(tmp_path / "out"), "--methods", "knn", method]
    with pytest.raises(SystemExit, match="2"):
        run_script("g1_offline.py", *flags)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_offline_scores_print_one_decimal_of_likelihoods_and_the_repeated_action(
    robot_store: Path, run_script: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = ["--demos", str(robot_store), "--out", str(tmp_path), "--samples", "2", "--device", "cpu"]
    run_script("g1_offline.py", *flags, "--methods", "knn")
    trained = capsys.readouterr().out
    run_script("g1_offline.py", "--table", str(tmp_path / "results.json"))
    printed = capsys.readouterr().out
    assert trained.endswith(printed)
    rows = {line.split(" | ")[0][2:]: line.split(" | ") for line in printed.splitlines()[2:]}
    assert [*rows] == [
        "random walk (Gaussian)",
        "linear model (Gaussian)",
        "knn (Gaussian)",
        "repeat the last action",
    ]
    assert re.fullmatch(r"−?\d+\.\d \[−?\d+\.\d, −?\d+\.\d\]", rows["knn (Gaussian)"][1])
    assert rows["repeat the last action"][4] != "–"


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
