"""Tests of plug-ins: methods, tasks and readers from another package, or from one new file in this one."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nsde_policy.data import DemoWriter, Episode
from tests.helpers.plugin_sources import METHOD, TASK, reach_episodes, write_package, write_table

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run(*args: object, path: list[Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a fresh process that imports from these folders."""
    command = [sys.executable, "-m", "nsde_policy.cli.main", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


@dataclass(frozen=True)
class Installed:
    """A third-party package in a folder, and a run that was trained with it."""

    site: Path
    run: Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("plugin")
    site, source = folder / "site", write_package(folder / "source")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        site,
    ]
    done = subprocess.run([*pip, source], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    demos, out = write_table(folder / "demos.table"), folder / "run"
    args = ["--policy", "linear", "--task", "reach", "--demos", demos, "--out", out, "--device", "cpu"]
    done = run("train", *args, path=[site, ROOT], cwd=folder)
    assert done.returncode == 0, done.stderr
    return Installed(site, out)


def test_train_uses_the_method_the_task_and_the_reader_of_another_package(installed: Installed):
    values = json.loads((installed.run / "config.json").read_text())
    assert values["config"]["method"] == "linear"
    assert values["task"] == "reach"
    assert values["demos"]["episodes"] == 20
    assert values["plugins"] == {"method": "reach-plugin==1.2.3", "task": "reach-plugin==1.2.3"}


def test_eval_plays_and_scores_the_task_of_another_package(installed: Installed, tmp_path: Path):
    args = ["--episodes", "4", "--workers", "2", "--json", "-"]
    done = run("eval", installed.run, *args, path=[installed.site, ROOT], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    episodes = json.loads(done.stdout)["episodes"]
    assert [episode["steps"] for episode in episodes] == [12] * 4
    assert all(episode["success"] and episode["distance"] < 0.1 for episode in episodes)
    assert all(episode["closeness"] == 1.0 - episode["distance"] for episode in episodes)


def test_export_writes_a_graph_of_a_method_of_another_package(installed: Installed, tmp_path: Path):
    out = tmp_path / "policy.onnx"
    args = ["--out", out, "--cases", "16"]
    done = run("export", installed.run, *args, path=[installed.site, ROOT], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    code = (
        "import sys; from nsde_policy.deploy.runtime import RuntimePolicy\n"
        f"policy = RuntimePolicy.load({str(out)!r}); policy.reset(seed=0)\n"
        "action = policy.select_action([0.5, -0.5])\n"
        "assert abs(action - [0.3, -0.3]).max() < 0.05, action\n"
        "assert 'torch' not in sys.modules\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # the graph runs without the plug-in
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True)


def test_a_run_of_a_package_that_is_not_installed_names_the_package(installed: Installed, tmp_path: Path):
    done = run("eval", installed.run, path=[ROOT], cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'reach-plugin==1.2.3'" in done.stderr
    assert "'linear'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the library, to which a test adds one file."""
    for folder in ("nsde_policy", "envs", "data", "eval"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def train_and_eval(checkout: Path, *args: str) -> dict[str, Any]:
    """Train and evaluate with the copied library, in one process to import torch once."""
    train = ["train", *args, "--device", "cpu", "--out", "run"]
    evaluate = ["eval", "run", "--episodes", "2", "--workers", "1", "--json", "eval.json"]
    code = f"from nsde_policy.cli.main import main; assert main({train}) == 0; assert main({evaluate}) == 0"
    env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((checkout / "eval.json").read_text())
    return found


def test_a_method_in_this_package_is_one_new_file(checkout: Path):
    (checkout / "nsde_policy/methods/linear.py").write_text(METHOD)
    found = train_and_eval(checkout, "--policy", "linear", "--demos.episodes", "20", "--train.steps", "20")
    assert found["method"] == "linear"
    assert len(found["episodes"]) == 2


def test_a_task_in_this_package_is_one_new_file(checkout: Path):
    (checkout / "nsde_policy/tasks/reach.py").write_text(TASK)
    with DemoWriter(checkout / "demos.zarr", rate_hz=5) as writer:
        for obs, act in reach_episodes():
            writer.append(Episode(obs, act))
    found = train_and_eval(checkout, "--policy", "knn", "--task", "reach", "--demos", "demos.zarr")
    assert [episode["steps"] for episode in found["episodes"]] == [12, 12]
    assert all(episode["closeness"] > 0.5 for episode in found["episodes"])
