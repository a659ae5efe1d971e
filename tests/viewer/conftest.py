"""Two methods for all tests of the viewer."""

import pytest

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.viewer.policy_runner import PolicyRunner, load_neighbours, load_runners


@pytest.fixture(scope="session")
def methods() -> list[PolicyRunner]:
    """The shipped Neural SDE and nearest neighbours."""
    return [*load_runners([SHIPPED_POLICY]), load_neighbours("pusht")]
