"""Tests of the environment of `make test`: the versions in .ci/lock.txt."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / ".ci/lock.txt").read_text()
EXTRAS = ("plot", "video", "adroit", "metaworld", "dev")
PYTHONS = ("3.11", "3.12", "3.13")


def find_versions(python):
    """Return the locked version of each package for a version of Python on Linux."""
    environment = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux"}
    return {
        canonicalize_name(each.name): str(each.specifier).removeprefix("==")
        for each in map(Requirement, re.findall(r"^(\w.*?)(?: \\)?$", LOCK, re.M))
        if each.marker is None or each.marker.evaluate(environment)
    }


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
