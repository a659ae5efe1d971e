"""Tests that known SDEs are recovered from data, with the functions of benchmarks/recovery.py."""

import pytest

from benchmarks import recovery


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "objective", "steps"),
    [("OrnsteinUhlenbeck", "square + NLL", 150), ("DoubleWell", "joint NLL", 400)],
)
def test_drift_and_diffusion_are_recovered_within_5_percent(process: str, objective: str, steps: int):
    sde = getattr(recovery, process)()
    data = recovery.simulate(sde, seed=0)
    assert len(data) == 200_000
    errors = recovery.recover(sde, data, 0, steps=steps, **recovery.OBJECTIVES[objective])
    assert errors.drift < 0.05
    assert errors.diffusion < 0.05
