"""Tests of benchmarks: pages of results, declared experiments, documented commands, and tiny runs."""

import argparse
import json
import logging
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from nsde_policy.assets import find_demos
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.tasks import get_task
from nsde_policy.training.demos import load_training_demos
from nsde_policy.training.presets import resolve_preset

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
PAGES = sorted((ROOT / "docs/results").glob("*.md"))
EXPERIMENTS = sorted((BENCHMARKS / "experiments").glob("*.toml"))
RunScript = Callable[..., dict[str, Any]]


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunScript]:
    """Return a function that runs a benchmark as a program, in this process, and returns its names."""

    def run(script: str, *flags: str, name: str = "__main__") -> dict[str, Any]:
        monkeypatch.syspath_prepend(BENCHMARKS)
        monkeypatch.setattr(sys, "argv", [script, *flags])
        return runpy.run_path(str(BENCHMARKS / script), run_name=name)

    yield run
    logging.disable(logging.NOTSET)  # programs may silence warnings


def list_video_jobs(run_script: RunScript, values: dict[str, Any]) -> list[Any]:
    args = argparse.Namespace(
        smoke=False, train_seeds=[0], rows=["*"], out=Path(), device="cpu", episodes=0, parallel_cameras=1
    )
    return run_script("video_runs.py", name="video_runs")["list_jobs"](values, args)


@pytest.mark.slow
def test_pages_of_results_are_what_the_command_writes(run_script: RunScript, tmp_path: Path):
    shutil.copytree(ROOT / "docs/results", tmp_path, dirs_exist_ok=True)
    for page in tmp_path.glob("*.md"):
        text = re.sub(r"(<!-- table: \w+ -->).*?(<!-- end -->)", r"\1\2", page.read_text(), flags=re.DOTALL)
        page.write_text(text)
    run_script("tables.py", "--write", str(tmp_path))
    for page in PAGES:
        assert (tmp_path / page.name).read_text() == page.read_text(), page.name


def test_every_table_and_every_file_of_results_is_on_a_page(run_script: RunScript):
    text = "".join(page.read_text() for page in PAGES)
    assert sorted(re.findall(r"<!-- table: (\w+) -->", text)) == sorted(
        run_script("tables.py", name="x")["TABLES"]
    )
    assert {*re.findall(r"`(\w+\.json)`", text)} == {path.name for path in (BENCHMARKS / "results").iterdir()}


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_experiments_declare_valid_settings(file: Path, run_script: RunScript):
    values = tomllib.loads(file.read_text())
    if values.get("kind") == "video":
        assert {job.variant for job in list_video_jobs(run_script, values)} == {*values["trainings"]}
    elif values.get("kind") is None:
        rows = run_script("experiment.py", name="experiment")["list_rollouts"](values)
        assert len({(row.training.task.name, row.file) for row in rows}) == len(rows)
        assert {row.training.row for row in rows} == {*values["trainings"]}
        trained = {row.training.folder: row.training for row in rows if row.training.seed == 0}
        for training in trained.values():
            if "auto" not in (training.preset, training.make_task().training.default_preset):
                training.make_config(Path())  # raises if a name or a value is invalid


@pytest.mark.slow
def test_an_experiment_is_trained_rolled_out_and_resumed(
    run_script: RunScript, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = shlex.split(f"avoiding --smoke --device cpu --players 1 --rows knn --out {tmp_path}")
    run_script("suite.py", *flags)
    first = capsys.readouterr().out
    assert "| **Nearest neighbours** |" in first
    for more in ([], ["--table"]):
        run_script("suite.py", *flags, *more)
        assert capsys.readouterr().out == first[first.index("avoiding, start=") :]


def test_table_of_metaworld_has_means_over_the_tasks_that_were_rolled_out(run_script: RunScript):
    stored = json.loads((BENCHMARKS / "results/metaworld.json").read_text())
    comparisons = {task: msgspec.convert(each, Comparison) for task, each in stored.items()}
    names = run_script("result_tables/metaworld_camera.py", name="x")
    text = names["tabulate_tasks"](comparisons).replace("\N{NO-BREAK SPACE}", " ")
    rows = {line.split(" | ")[0].strip("| *"): line.split(" | ")[1:] for line in text.splitlines()}
    means = {
        task.split(":")[1].removesuffix("-v3"): np.mean([entry.episodes.success for entry in each.entries])
        for task, each in comparisons.items()
    }
    assert float(rows["all (10)"][0].split()[0]) == pytest.approx(np.mean(list(means.values())), abs=6e-4)
    easy = [means[name] for name in ("door-open", "drawer-open", "reach")]
    assert float(rows["easy (3)"][0].split()[0]) == pytest.approx(np.mean(easy), abs=6e-4)
    assert rows["easy (3)"][1:] == ["0.697", "0.743 |"], "the mean of 98, 93, 18 and of 99, 100, 24"
    assert rows["push"][1:] == ["0.300", "0.510 |"]
    assert "button-press" not in rows


def test_settings_are_measured_on_the_demonstrations_that_a_training_uses(run_script: RunScript):
    values = {"tasks": ["avoiding"], "trained_on": [10, 60], "trainings": {"neural_sde": {"preset": "auto"}}}
    trainings = list(run_script("experiment.py", name="experiment")["list_trainings"](values))
    store, task = find_demos("avoiding"), get_task("avoiding")
    assert len({training.folder for training in trainings}) == 2
    for training, count in zip(trainings, (10, 60), strict=True):
        config = training.make_config(store)
        few = load_training_demos(task.training.demos, store).take(count)
        _, expected = resolve_preset(task, "auto", "neural_sde", demos=few)
        assert config.demos.episodes == count
        assert config.train == expected.train
        assert config.model == expected.model


@pytest.fixture
def demonstration_curves() -> dict[str, Any]:
    """Results of two tasks over 3 and 10 demonstrations: all fail with 3, and one result is missing."""
    stored = json.loads((BENCHMARKS / "results/metaworld.json").read_text())
    curves = {}
    for task in ("metaworld:push-v3", "metaworld:reach-v3"):
        entries = [{**entry, "name": "neural_sde"} for entry in stored[task]["entries"][:1]]
        failed = {**entries[0]["episodes"], "success": [False] * 100}
        entries.append({**entries[0], "demos": 3, "episodes": failed})
        entries += [{**entry, "name": "neural_sde, full state"} for entry in entries]
        curves[task] = {**stored[task], "entries": entries}
    curves["metaworld:reach-v3"]["entries"].pop()
    return curves


def test_table_over_demonstrations_has_means_of_what_every_task_has(
    run_script: RunScript, demonstration_curves: dict[str, Any]
):
    comparisons = {task: msgspec.convert(each, Comparison) for task, each in demonstration_curves.items()}
    text = run_script("result_tables/demonstrations.py", name="x")["tabulate_demonstrations"](comparisons)
    rows = [[cell.split("[")[0].strip(" |") for cell in line.split(" | ")] for line in text.splitlines()]
    assert rows[0] == ["task", "method", "3", "10"]
    push, reach = (f"{np.mean(each.entries[0].episodes.success):.3f}" for each in comparisons.values())
    mean = f"{(float(push) + float(reach)) / 2:.3f}"
    assert rows[2:8] == [
        ["**mean of 2**", "Neural SDE", "0.000", mean],
        ["**mean of 2**", "Neural SDE, full state", "–", mean],
        ["push", "Neural SDE", "0.000", push],
        ["push", "Neural SDE, full state", "0.000", push],
        ["reach", "Neural SDE", "0.000", reach],
        ["reach", "Neural SDE, full state", "–", reach],
    ]


def test_picture_over_demonstrations_is_drawn(
    run_script: RunScript, demonstration_curves: dict[str, Any], tmp_path: Path
):
    results = tmp_path / "results.json"
    results.write_text(json.dumps(demonstration_curves))
    run_script("demonstration_curve.py", str(results), "--out", str(tmp_path))
    with Image.open(tmp_path / "demonstrations.png") as picture:
        assert picture.size == (1036, 364)
        blue = np.asarray(picture.convert("RGB")) == (0x00, 0x72, 0xB2)
    assert blue.all(-1).sum() > 100, "the curve of the Neural SDE"


def test_places_that_the_frame_shows_are_found_and_others_are_not(run_script: RunScript):
    script = run_script("seen_places.py", name="x")
    seen = np.random.default_rng(0).normal(size=(400, 8))
    places = 0.1 * seen[:, 4:7] + [0.0, 0.6, 0.02]  # in metres, told by three of the features
    parts = [script["Frames"](seen[rows], places[rows]) for rows in (slice(300), slice(300, 400))]
    assert script["measure_errors"](*parts, slice(None)).max() < 0.3
    assert script["measure_errors"](*parts, slice(4)).mean() == pytest.approx(16, rel=0.2), "10 √3 · 0.92 cm"


@pytest.mark.slow
def test_a_policy_of_an_arm_is_trained_driven_and_resumed(
    run_script: RunScript, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = ["teleoperated", "--smoke", "--out", str(tmp_path)]
    run_script("arms.py", *flags)
    first = capsys.readouterr().out
    assert re.findall(r"^\| (as recorded|noise doubled) \| \d of 1", first, re.MULTILINE)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    run_script("arms.py", *flags)
    assert capsys.readouterr().out == first
    assert {path: path.stat().st_mtime_ns for path in files} == files


@pytest.mark.parametrize("script", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_every_script_can_be_imported(script: str, run_script: RunScript):
    assert run_script(script, name="imported")


@pytest.mark.slow
def test_damaged_inputs_reveal_no_fault(tmp_path: Path):
    command = [sys.executable, str(BENCHMARKS / "attack.py"), "--attempts", "4", "--out", str(tmp_path)]
    attack = subprocess.run(command, capture_output=True, text=True)
    assert attack.returncode == 0, attack.stdout + attack.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["suite.py", "nosuch"], "invalid choice: 'nosuch'"),
        (["suite.py", "adroit"], "adroit-door needs adroit_door_expert.zarr: give the folder"),
        (["suite.py", "g1"], "the experiment needs g1_real.zarr: give its folder with --demos"),
        (
            ["seen_places.py", "shipped"],
            "shipped is a run of pusht: give one of metaworld:NAME, --obs pixels",
        ),
        (["tables.py", "nosuch"], "no table is called 'nosuch'; tables: pusht_methods, "),
    ],
)
def test_bad_flags_are_refused(
    flags: list[str], message: str, run_script: RunScript, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        run_script(*flags)
    assert message in capsys.readouterr().err


def find_benchmark_commands() -> list[str]:
    """Return the arguments of `python` in README and docs that run a benchmark."""
    found = set[str]()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(r"^python (benchmarks/\w+\.py .*)", text, re.MULTILINE)
        inline = re.findall(r"`python (benchmarks/\w+\.py [^`]*)`", text)
        found |= {command.partition(" #")[0] for command in (*lines, *inline)}
    return sorted(command for command in found if "EXPERIMENT" not in command)


class ParsedError(Exception):
    """Raised in place of the work of a benchmark when its flags are parsed."""


@pytest.mark.parametrize("command", find_benchmark_commands())
def test_documented_commands_parse(command: str, run_script: RunScript, monkeypatch: pytest.MonkeyPatch):
    parse_args = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser) -> None:
        parse_args(parser)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    script, *flags = shlex.split(command)
    with pytest.raises(ParsedError):
        run_script(Path(script).name, *flags)


def test_verdicts_are_ranked_with_ties_and_counted(
    run_script: RunScript, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = run_script("verdicts.py", name="verdicts")
    assert script["rank"]([3.0, 1.0, 3.0, 2.0]).tolist() == [3.0, 0.5, 3.0, 1.5]
    runs = [*script["list_runs"]()]
    assert len(runs) >= 40
    for (task, name, _), success, number in zip(runs, (1.0, 0.0, 0.5), (2.0, -1.0, 1.5), strict=False):
        outlook = "expect it to work" if number > 1 else "expect it to fail"
        result = {
            "task": task.name,
            "run": name,
            "success": success,
            "verdict": {"score": number, "outlook": outlook},
            "roughness": 1.0,
        }
        script["find_result"](tmp_path, task.name, name).write_text(json.dumps(result))
    run_script("verdicts.py", "--table", "--out", str(tmp_path))
    printed = capsys.readouterr().out
    assert "all tasks: 3 runs, Spearman's correlation 1.00" in printed
    assert "expect it to work: 2 runs, 1 of them with a success of at least 0.7" in printed
    assert "expect it to fail: 1 runs, 0 of them" in printed
