"""Two methods for all tests of the viewer."""

import pytest

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.viewer.policy_runner import PolicyRunner, load_runners
from tests.helpers.viewer_servers import train_neighbours


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> list[PolicyRunner]:
    """The shipped Neural SDE and nearest neighbours."""
    return load_runners([SHIPPED_POLICY, train_neighbours(tmp_path_factory.mktemp("runs"))])
