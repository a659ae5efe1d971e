"""Tests of the package as users get it: wheel, metadata, folders, versions."""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import nsde_policy
from nsde_policy import __version__
from tests.helpers.shared_files import make_once

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
UNBOUNDED = ("dev", "docs", "adroit", "metaworld")
"""Extras that are not tested with the oldest versions: the simulators are pinned and need newer packages."""


def folders_with_modules():
    for folder in ("nsde_policy", "envs", "data", "eval"):
        prefix = [] if folder == "nsde_policy" else ["nsde_policy"]
        for parent in {module.parent for module in (ROOT / folder).rglob("*.py")}:
            assert (parent / "__init__.py").is_file(), parent
            yield ".".join([*prefix, *parent.relative_to(ROOT).parts])


def test_every_folder_with_modules_is_listed_for_the_wheel():
    assert sorted(folders_with_modules()) == sorted(PYPROJECT["tool"]["setuptools"]["packages"])


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] in (__version__, "Unreleased")


def test_the_oldest_versions_in_ci_are_the_minimums_of_the_package():
    extras = PROJECT["optional-dependencies"]
    required = [
        *PROJECT["dependencies"],
        *(each for name in extras if name not in UNBOUNDED for each in extras[name]),
    ]
    oldest = [line for line in (ROOT / ".ci/oldest.txt").read_text().splitlines() if line[0] != "#"]
    assert oldest == sorted({each.replace(">=", "==") for each in required})


def test_public_names_are_imported_on_first_use():
    code = "import sys, nsde_policy; assert not {'torch', 'numpy', 'zarr', 'gymnasium'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert all(getattr(nsde_policy, name) is not None for name in nsde_policy.__all__)
    assert dir(nsde_policy) == sorted(nsde_policy.__all__)


@pytest.fixture(scope="module")
def wheel(shared_folder):
    def build(out):  # in the checkout's folder `build`, so one process at a time
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return next(make_once(shared_folder / "wheel", build).glob("*.whl"))


@pytest.mark.slow
def test_every_module_imports_from_the_wheel_outside_the_checkout(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        top = {name.split("/")[0] for name in archive.namelist()}
        assert top == {"nsde_policy", f"nsde_policy-{__version__}.dist-info"}
        modules = [n for n in archive.namelist() if n.startswith("nsde_policy/") and n.endswith(".py")]
        assert "nsde_policy/py.typed" in archive.namelist()
    names = [n.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for n in modules]
    assert {"nsde_policy.envs.pusht.env", "nsde_policy.data", "nsde_policy.eval"} <= set(names)
    others = [p for p in sys.path if p.endswith("site-packages")]
    code = (
        f"import sys; sys.path += {others!r}\n"
        f"import importlib\nfor name in {names!r}:\n"
        f"    module = importlib.import_module(name)\n"
        f"    assert module.__file__.startswith({str(site)!r}), module.__file__\n"
        "import gymnasium\nassert 'nsde_policy/PushT-v0' in gymnasium.registry\n"
    )
    done = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
