"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def human_demos() -> Path:
    """The 206 human demonstrations of Push-T, which are not part of this repository."""
    beside = CHECKOUT.parent / "shared" / "demos" / "pusht_cchi_v7_replay.zarr"
    path = Path(os.environ.get("NSDE_POLICY_DEMOS", beside))
    if not path.exists():
        pytest.skip(f"no human demonstrations at {path}; set NSDE_POLICY_DEMOS to their zarr store")
    return path
