"""Two methods for all tests of the viewer."""

import pytest

from nsde_policy.viewer.policy_runner import PolicyRunner
from tests.helpers.viewer_servers import load_two_methods


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> list[PolicyRunner]:
    """The shipped Neural SDE and nearest neighbours."""
    return load_two_methods(tmp_path_factory.mktemp("runs"))
