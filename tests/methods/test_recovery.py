"""Tests that known SDEs are recovered from data."""

import pytest

from tests.helpers import known_sdes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "objective", "steps"),
    [("OrnsteinUhlenbeck", "square + NLL", 150), ("DoubleWell", "joint NLL", 400)],
)
def test_drift_and_diffusion_are_recovered_within_5_percent(process: str, objective: str, steps: int):
    sde = getattr(known_sdes, process)()
    data = known_sdes.simulate(sde, seed=0)
    assert len(data) == 200_000
    errors = known_sdes.recover(sde, data, 0, steps=steps, **known_sdes.OBJECTIVES[objective])
    assert errors.drift < 0.05
    assert errors.diffusion < 0.05
