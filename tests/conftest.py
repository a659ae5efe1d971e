"""What tests share: the human demonstrations, where they are, and one torch thread."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

BESIDE_THE_CHECKOUT = Path(__file__).parents[2] / "shared/demos/pusht_cchi_v7_replay.zarr"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Pin torch to one thread: results and times then depend on less."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def human_demos() -> Path:
    """The store of 206 human Push-T demonstrations, which is not part of the repository."""
    path = Path(os.environ.get("NSDE_POLICY_DEMOS", BESIDE_THE_CHECKOUT))
    if not path.exists():
        pytest.skip(f"no human demonstrations at {path}: data download pusht, set NSDE_POLICY_DEMOS")
    return path


@pytest.fixture(scope="session")
def human_states(human_demos) -> tuple[np.ndarray, np.ndarray]:
    """All recorded states, (25650, 5), and where episodes end, (206,)."""
    from nsde_policy.data import load_demonstrations

    demos = load_demonstrations(human_demos)
    return demos.obs, demos.episode_ends
