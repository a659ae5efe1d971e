"""A graph that the tests of the exporter and of the runtime share."""

from pathlib import Path

import pytest

from tests.helpers.exported_policies import export_small_policy


@pytest.fixture(scope="session")
def small_graph(tmp_path_factory: pytest.TempPathFactory, onnx_operators: None) -> Path:
    """Return a small Neural SDE as an ONNX graph of four actions; do not change it."""
    return export_small_policy(tmp_path_factory.mktemp("small"))
