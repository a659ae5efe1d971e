"""A browser and two methods for all tests of the viewer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from nsde_policy.viewer.policy_runner import PolicyRunner
from tests.helpers.browser import chromium
from tests.helpers.viewer_servers import load_two_methods

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> list[PolicyRunner]:
    """The shipped Neural SDE and nearest neighbours."""
    return load_two_methods(tmp_path_factory.mktemp("runs"))
