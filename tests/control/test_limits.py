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
    targets=st.lists(st.floats(-200, 300), min_size=10, max_size=40),
    speeds=st.lists(st.floats(-150, 150), min_size=1, max_size=3),
    shares=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5),
    start=st.floats(-50, 150),
    longest_step=st.sampled_from([0.004, 0.02, 0.1]),
)
def test_every_command_respects_every_limit(targets, speeds, shares, start, longest_step):
    limiter = Limiter(LIMITS, np.array([start]))
    velocity = 0.0

    def check(before: float, after: float, dt: float) -> None:
        nonlocal velocity
        rounding = 1e-12 / dt  # of a velocity
        assert 0 <= after <= 100
        old, velocity = velocity, (after - before) / dt
        assert abs(velocity) <= 80 + rounding
        assert abs(velocity - old) / dt <= 500 * (1 + 1e-9) + 2 * rounding / dt

    for k, target in enumerate(targets):
        dt, before = longest_step * shares[k % len(shares)], limiter.command[0]
        is_hold, speed = k % 7 == 6, np.array([speeds[k % len(speeds)]])
        command = limiter.brake(dt) if is_hold else limiter.follow(np.array([target]), speed, dt)
        check(before, command[0], dt)
    for k in range(10_000):  # braking ends at rest
        dt, before = longest_step * shares[k % len(shares)], limiter.command[0]
        check(before, limiter.brake(dt)[0], dt)
        if limiter.at_rest:
            break
    assert limiter.at_rest


def test_extreme_numbers_do_not_raise():
    tiny = Limits(np.full(1, -1e38), np.full(1, 1e38), np.full(1, 1e-29), np.full(1, 1e-29))
    wide = Limits(np.full(1, -3e38), np.full(1, 3e38), np.full(1, 3e38), np.full(1, 3e38))
    for limits in (LIMITS, tiny, wide):
        limiter = Limiter(limits, np.array([50.0]))
        for target in (1.7e308, -1.7e308, 0.0):
            for dt in (1e-9, 0.1, 0.0):
                limiter.brake(dt)
                assert np.isfinite(limiter.follow(np.array([target]), np.zeros(1), dt) if dt else 0).all()


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
        ([0, 0], [1, 1], [1, 1], [1, -1], "acceleration > 0"),
        ([0, 0], [1, 1], [1, np.nan], [1, 1], "finite speed"),
        ([0, 0], [1, 1], [1], [1, 1], "four arrays"),
        ([0, 0], [1, 1e39], [1, 1], [1, 1], "finite high"),
    ],
)
def test_invalid_limits_raise(low, high, speed, acceleration, message):
    with pytest.raises(ConfigError, match=message):
        Limits(np.array(low), np.array(high), np.array(speed), np.array(acceleration))
