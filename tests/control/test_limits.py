"""Tests for control/limits.py: position, speed and acceleration of commands."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsde_policy.control.limits import Limiter, Limits
from nsde_policy.errors import ConfigError

LIMITS = Limits(np.zeros(1), np.full(1, 100.0), np.full(1, 80.0), np.full(1, 500.0))


@settings(max_examples=200, deadline=None)
@given(
    targets=st.lists(st.floats(-200, 200), min_size=2, max_size=40),
    dts=st.lists(st.floats(1e-4, 0.1), min_size=1, max_size=5),
    start=st.floats(-50, 150),
)
def test_every_command_respects_every_limit(targets, dts, start):
    limiter = Limiter(LIMITS, np.array([start]))
    for k, target in enumerate(targets):
        dt, before, velocity = dts[k % len(dts)], limiter.command, limiter.velocity
        command = limiter.hold(dt) if k % 7 == 6 else limiter.follow(np.array([target]), np.zeros(1), dt)
        assert 0 <= command[0] <= 100
        assert abs(command[0] - before[0]) <= 80 * dt + 1e-9
        assert abs((command[0] - before[0]) / dt - velocity[0]) <= 500 * dt + 1e-6


def test_a_limiter_reaches_a_fixed_target_without_overshoot_and_then_tracks_a_moving_one():
    limiter, dt = Limiter(LIMITS, np.zeros(1)), 0.004
    path = [limiter.follow(np.array([30.0]), np.zeros(1), dt)[0] for _ in range(400)]
    assert max(path) <= 30 + 1e-9
    assert path[-1] == pytest.approx(30, abs=1e-6)
    velocity = np.array([20.0])
    targets = [30 + 20 * dt * k for k in range(1, 300)]
    path = [limiter.follow(np.array([target]), velocity, dt)[0] for target in targets]
    assert path[-50:] == pytest.approx(targets[-50:], abs=1e-9)


@pytest.mark.parametrize(
    ("low", "high", "speed", "acceleration", "message"),
    [
        ([1, 1], [0, 0], [1, 1], [1, 1], "low < high"),
        ([0, 0], [1, 1], [0, 0], [1, 1], "speed > 0"),
        ([0, 0], [1, 1], [1, 1], [1, -1], "acceleration > 0"),
        ([0, 0], [1, np.inf], [1, 1], [1, 1], "finite high"),
        ([0, 0], [1, 1], [1, np.nan], [1, 1], "finite speed"),
        ([0, 0], [1, 1], [1], [1, 1], "four arrays"),
        ([[0]], [[1]], [[1]], [[1]], "four arrays"),
    ],
)
def test_invalid_limits_raise(low, high, speed, acceleration, message):
    with pytest.raises(ConfigError, match=message):
        Limits(np.array(low), np.array(high), np.array(speed), np.array(acceleration))
