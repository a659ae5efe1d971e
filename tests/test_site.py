"""Tests of the documentation site: no warnings, every public name, and nothing from the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nsde_policy
from nsde_policy.cli.main import COMMANDS
from tests.helpers.doc_pages import load_script
from tests.helpers.shared_files import make_once

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
reference = load_script(ROOT / "docs/make_reference.py")


@pytest.fixture(scope="module")
def site(shared_folder: Path) -> Path:
    """Build the site as `make docs` does, elsewhere; every warning is an error."""

    def build(folder: Path) -> None:
        reference.main()
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
        env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return make_once(shared_folder / "site", build)


def test_every_public_name_is_documented(site: Path) -> None:
    page = (site / "reference/python.html").read_text()
    anchors = set(re.findall(r'id="([\w.]+)"', page))
    assert {f"nsde_policy.{name}" for name in nsde_policy.__all__} <= anchors
    described = {anchor.rpartition(".")[2] for anchor in anchors}
    for module in reference.MODULES:
        names = {*reference.find_public_names(module)}
        assert names
        assert names <= described


def test_every_command_is_documented(site: Path) -> None:
    page = (site / "reference/commands.html").read_text()
    for name, command in COMMANDS.items():
        for words in [name] if isinstance(command, type) else [f"{name} {each}" for each in command]:
            assert f'id="{words.replace(" ", "-")}"' in page, words
    assert "--model.network.width" in page  # among all settings of train
