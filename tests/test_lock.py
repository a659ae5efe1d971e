"""Tests of the environment of `make test`: versions in .ci/lock*.txt, hashes and bounds."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted((ROOT / ".ci").glob("lock*.txt"))
EXTRAS = ("plot", "video", "adroit", "metaworld", "dev")
PYTHONS = ("3.11", "3.12", "3.13")


def read_lock(path):
    """Return [(requirement, hashes)] of a lock file."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.M)
    for entry in re.split(r"\n(?=\S)", text.strip()):
        head, *options = re.split(r" \\\n +", entry)
        yield Requirement(head), options


def find_versions(python):
    """Return the locked version of each package for a version of Python on Linux."""
    environment = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux"}
    return {
        canonicalize_name(each.name): str(each.specifier).removeprefix("==")
        for each, _ in read_lock(ROOT / ".ci/lock.txt")
        if each.marker is None or each.marker.evaluate(environment)
    }


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_one_version_and_hashes(path):
    entries = list(read_lock(path))
    assert entries
    for requirement, options in entries:
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
        assert options, requirement
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in options), requirement


@pytest.mark.parametrize("python", PYTHONS)
def test_locked_versions_are_within_the_bounds_of_the_package(python):
    locked = find_versions(python)
    required = [*PROJECT["dependencies"], *(d for e in EXTRAS for d in PROJECT["optional-dependencies"][e])]
    required = {Requirement(each) for each in required}
    (torch,) = (each for each in required if each.name == "torch")
    (pin,) = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pin in torch.specifier
    assert not [name for name in locked if re.match(r"torch$|triton|nvidia|cuda", name)]
    wrong = {
        str(each): locked.get(canonicalize_name(each.name))
        for each in required - {torch}
        if locked.get(canonicalize_name(each.name), "0") not in each.specifier
    }
    assert not wrong, "run `make lock`"


def list_installs(*options):
    """Return the install commands with which `make test` sets up its environment from nothing."""
    command = ["make", "-nB", *options, ".venv/tested"]
    env = {key: value for key, value in os.environ.items() if key not in ("CONSTRAINTS", "MAKEFLAGS")}
    printed = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout
    return [line for line in printed.replace("\\\n", "").splitlines() if " install " in line]


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_tests_install_the_locked_versions_and_ci_can_choose_others():
    locked = [line for line in list_installs() if "--require-hashes" in line]
    others = [line for line in list_installs() if "--require-hashes" not in line]
    assert [re.findall(r"\.ci/(\S+)", line) for line in locked] == [
        ["lock-uv.txt"],
        ["lock.txt"],
        ["lock-pymunk-6.txt"],
    ]
    assert [line.split()[-1] for line in others] == ["torch", "."]
    newest = list_installs("CONSTRAINTS=/dev/null")
    assert newest
    assert not [line for line in newest if ".ci/lock" in line]
