"""Tests that known SDEs are recovered from data."""

import pytest

from tests.helpers import known_sdes


@pytest.mark.slow
def test_drift_and_diffusion_are_recovered_within_10_percent():
    sde = known_sdes.DoubleWell()
    data = known_sdes.simulate(sde, seed=0)
    assert len(data) == 200_000
    errors = known_sdes.recover(sde, data, 0, steps=250, **known_sdes.OBJECTIVES["square + NLL"])
    assert errors.drift < 0.1
    assert errors.diffusion < 0.1
