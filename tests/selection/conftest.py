"""A tiny Push-T run with plan selection for all tests of this folder."""

from pathlib import Path

import pytest

from tests.helpers.selecting_runs import train_tiny
from tests.helpers.shared_files import make_once


@pytest.fixture(scope="session")
def goal_run(shared_folder: Path) -> Path:
    """Return the run directory of a policy that selects plans by the goal; do not change it."""
    return make_once(shared_folder / "selection", lambda folder: train_tiny(folder / "run")) / "run"
