"""Tests of plug-ins: the package in docs/extending.md, and packages that are broken or not installed."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from tests.helpers.demo_stores import write_store
from tests.helpers.doc_pages import code_blocks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/extending.md"
pytestmark = pytest.mark.slow
# Runs command lines in one process, to import torch once, and writes what each prints to a file.
COMMANDS = """
import contextlib, runpy, shlex, sys
from nsde_policy.cli.main import main
for line in sys.argv[1:]:
    program, *args = shlex.split(line, comments=True)
    if program == "python":
        sys.argv = args
        runpy.run_path(args[0], run_name="__main__")
        continue
    with open(f"{args[0]}.txt", "w") as file, contextlib.redirect_stdout(file):
        assert main(args) == (2 if line.endswith("# refused") else 0), line
"""


def printed_files() -> dict[str, str]:
    """Return the files of the package that the page prints, by path."""
    pattern = r"`([\w/]+\.(?:py|toml))`[^`]*?:\n\n```(?:python|toml)\n(.*?)^```"
    return dict(re.findall(pattern, PAGE.read_text(), re.DOTALL | re.MULTILINE))


def run_line(line: str, *, path: list[Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one line of a shell in a fresh process that imports from these folders."""
    program, *args = shlex.split(line, comments=True)
    start = [sys.executable] if program == "python" else [sys.executable, "-m", "nsde_policy"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*start, *args], cwd=cwd, env=env, capture_output=True, text=True)


def write_package(site: Path, name: str, version: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of an installed package with entry points."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{point} = {module}\n" for point, module in points.items())
        for group, points in groups.items()
    ]
    (info / "entry_points.txt").write_text("".join(lines))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package, in which it is installed and its commands were run."""
    folder = tmp_path_factory.mktemp("my-robot")
    files = printed_files()
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    write_package(folder, project["name"], project["version"], project["entry-points"])
    (folder / "my_robot").mkdir()
    (folder / "my_robot/__init__.py").touch()
    for name, content in files.items():
        (folder / name).write_text(content)
    (printed,) = (block for block in code_blocks(PAGE, "bash") if "pip install -e ." in block)
    _, *commands = printed.splitlines()
    commands = [line.replace(" eval ", " eval --workers 1 ") for line in commands]  # torch is imported once
    (snippet,) = (block for block in code_blocks(PAGE, "python") if "select_action" in block)
    code = f"{COMMANDS}{snippet}print(*action)"
    done = run_line(f"python -c {shlex.quote(code)} {shlex.join(commands)}", path=[ROOT, folder], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "action.txt").write_text(done.stdout.splitlines()[-1])
    return folder


def test_commands_use_the_method_the_task_and_the_reader_of_another_package(package: Path):
    values = json.loads((package / "runs/reach/config.json").read_text())
    assert values["config"]["method"] == "linear"
    assert values["task"] == "reach"
    assert values["demos"]["episodes"] == 30
    assert values["versions"]["my-robot"] == "1.0"
    printed = (package / "eval.txt").read_text()
    assert "mean progress" in printed
    assert "final distance" in printed
    (rate,) = re.findall(r"success rate\s+([\d.]+)", printed)
    assert float(rate) > 0.3


def test_export_writes_a_graph_of_a_method_of_another_package(package: Path):
    code = (
        "import sys; from nsde_policy.deploy.runtime import RuntimePolicy\n"
        "graph = RuntimePolicy.load('runs/reach/policy.onnx'); graph.reset(seed=0)\n"
        "print(*graph.select_action([0.2, 0.3, 0.7, 0.6]))\n"
        "assert 'torch' not in sys.modules and 'my_robot' not in sys.modules"
    )
    done = run_line(f"python -c {shlex.quote(code)}", path=[ROOT, package], cwd=package)
    assert done.returncode == 0, done.stderr
    printed = done.stdout, (package / "action.txt").read_text()
    graph, policy = (np.array(text.split(), float) for text in printed)
    assert np.allclose(policy, (0.25, 0.35), atol=0.2)
    assert np.allclose(graph, policy, atol=1e-4)


def test_a_run_of_a_package_that_is_not_installed_names_the_package(
    package: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["eval", str(package / "runs/reach")]) == 2
    printed = capsys.readouterr().err
    assert "'my-robot': '1.0'" in printed
    assert "'linear'" in printed
    assert printed.count("\n") == 1


BROKEN = {
    "methods": "raise RuntimeError('no licence')",
    "tasks": "import sys; sys.exit(0)",
    "readers": "import sys; sys.exit('no reader')",
    "encoders": "1 / 0",
}
"""Modules of a package whose plug-ins cannot be imported, by the end of their group."""


def test_broken_plug_ins_matter_only_to_those_who_ask_for_them(tmp_path: Path):
    site = tmp_path / "site"
    points = {f"nsde_policy.{group}": {f"broken_{group}": f"broken_{group}"} for group in BROKEN}
    write_package(site, "broken", "1.0", points)
    for group, content in BROKEN.items():
        (site / f"broken_{group}.py").write_text(content)
    write_store(tmp_path / "demos.zarr", attributes={"rate_hz": 10})
    good = [
        "data info demos.zarr",
        "train --policy knn --demos demos.zarr --out run --device cpu",
        "eval --episodes 1 --workers 1 --env-kwargs '{\"max_episode_steps\": 2}'",
    ]
    refused = {
        "train --policy broken_methods": "cannot be imported from broken_methods: RuntimeError: no licence",
        "train --task broken_tasks": "cannot be imported from broken_tasks: SystemExit: 0",
        "train --task nowhere": "unavailable: the task 'broken_tasks' cannot be imported",
    }
    commands = shlex.join(f"nsde-policy {line}" for line in (*good, *(f"{bad} # refused" for bad in refused)))
    suite = "\nfrom nsde_policy.methods.registry import METHODS\nassert len(METHODS.load_all()) > 3"
    done = run_line(f"python -c {shlex.quote(COMMANDS + suite)} {commands}", path=[ROOT, site], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out: the method 'broken_methods'" in done.stderr
    assert done.stderr.count("left out: the reader 'broken_readers'") == 1
    assert [message for message in refused.values() if message not in done.stderr] == []


def test_a_name_belongs_to_the_module_that_registers_it_first(tmp_path: Path):
    code = """
        from nsde_policy.methods.baselines.knn import NearestNeighboursConfig
        from nsde_policy.methods.registry import Method, add_method, get_method
        own = Method("diffusion", "My diffusion", NearestNeighboursConfig, {}, "mine.model:Model")
        add_method(own)
        add_method(own)
        import nsde_policy.methods.baselines.diffusion
    """
    done = run_line(f"python -c {shlex.quote(textwrap.dedent(code))}", path=[ROOT], cwd=tmp_path)
    assert "the method 'diffusion', as mine.model has done: rename one" in done.stderr
