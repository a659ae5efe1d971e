"""Tests of the package as users get it: the wheel, the metadata, the folders."""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from nsde_policy import __version__

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_on_disk():
    for folder in ("nsde_policy", "envs", "data", "eval"):
        prefix = [] if folder == "nsde_policy" else ["nsde_policy"]
        for init in (ROOT / folder).rglob("__init__.py"):
            yield ".".join([*prefix, *init.parent.relative_to(ROOT).parts])


def test_every_package_on_disk_is_listed_for_the_wheel():
    assert sorted(packages_on_disk()) == sorted(PYPROJECT["tool"]["setuptools"]["packages"])


def test_every_folder_with_modules_is_a_package():
    for folder in ("nsde_policy", "envs", "data", "eval"):
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), module


def test_the_version_is_the_same_in_both_places():
    assert PYPROJECT["project"]["version"] == __version__


def test_the_core_install_stays_small():
    names = {re.split(r"[^\w-]", d)[0] for d in PYPROJECT["project"]["dependencies"]}
    card = {"torch", "gymnasium", "pymunk", "pygame", "zarr", "diffusers", "numpy"}
    assert names - card == {"safetensors", "tqdm", "tyro", "websockets"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_installs_one_import_name(wheel):
    with zipfile.ZipFile(wheel) as archive:
        top = {name.split("/")[0] for name in archive.namelist()}
    assert top == {"nsde_policy", f"nsde_policy-{__version__}.dist-info"}


def test_every_module_imports_from_the_wheel_outside_the_checkout(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
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
