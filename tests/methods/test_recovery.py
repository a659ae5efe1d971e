"""Known SDEs are recovered from data, by both objectives; benchmarks/recovery.py compares more of them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "recovery.py"


@pytest.fixture(scope="module")
def recovery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recovery", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["joint NLL", "square + NLL"])
@pytest.mark.parametrize("process", ["OrnsteinUhlenbeck", "DoubleWell"])
def test_drift_and_diffusion_are_recovered_within_5_percent(
    recovery: ModuleType, process: str, objective: str
):
    sde = getattr(recovery, process)()
    data = recovery.simulate(sde, seed=0)
    assert len(data) == 200_000
    errors = recovery.recover(sde, data, 0, steps=700, **recovery.OBJECTIVES[objective])
    assert errors.drift < 0.05
    assert errors.diffusion < 0.05
