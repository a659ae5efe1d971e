"""Fixtures shared by all tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Pin torch to one thread: results and times then depend on less."""
    torch.set_num_threads(1)
