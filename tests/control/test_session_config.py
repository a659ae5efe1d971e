"""Tests for control/config.py: settings of a session."""

import dataclasses
from types import MappingProxyType

import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.errors import ConfigError
from tests.helpers.numpy_planner import CALIBRATION, SPEC, Sim, Walker
from tests.helpers.sessions import make_session


def test_a_session_slower_than_its_policy_raises():
    with pytest.raises(
        ConfigError, match=r"rate_hz is 5, the policy's rate is 10: .* set rate_hz to 10 or more"
    ):
        make_session(Sim(), rate_hz=5)


def test_deltas_are_sent_at_the_policy_rate_only():
    deltas = dataclasses.replace(CALIBRATION, delta_columns=(0, 1))
    with pytest.raises(ConfigError, match=r"rate_hz is 50, but actions 0, 1 .* at 10 Hz.* set rate_hz to 10"):
        Session(Walker(), SessionConfig(rate_hz=50), calibration=deltas)
    session = Session(Walker(), SessionConfig(rate_hz=10), calibration=deltas)
    with pytest.raises(ConfigError, match=r"actions 0, 1 .* call step\(\) once per period"):
        session.action_at(0.0)


def test_a_policy_of_unknown_rate_needs_policy_hz():
    with pytest.raises(ConfigError, match="set policy_hz"):
        Session(Walker(), SessionConfig())


def test_a_chunk_longer_than_a_plan_raises():
    planner = Walker(dataclasses.replace(SPEC, longest_chunk=8))
    with pytest.raises(ConfigError, match="chunk is 50, a plan of this policy has at most 8 commands"):
        make_session(Sim(), planner, chunk=50)
    assert make_session(Sim(), planner, chunk=8).resolved.chunk == 8
    assert make_session(Sim(), chunk=50).resolved.chunk == 50


def test_an_out_of_distribution_fault_needs_a_calibration():
    with pytest.raises(ConfigError, match="fault_when_ood needs a calibration"):
        make_session(Sim(), fault_when_ood=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 10}, "no setting 'rate'; the closest is 'rate_hz' of rate_hz, deadline_s, limits"),
        ({"plan_ahed": True}, "the closest is 'plan_ahead'"),
        ({"rate_hz": "fast"}, "rate_hz must be float, got 'fast'"),
        ({"rate_hz": 1e7}, "need rate_hz <= 1000000"),
        ({"rate_hz": None}, "rate_hz must be float, got None"),
        ({"deadline_s": float("nan")}, "need deadline_s > 0"),
        ({"policy_hz": 0}, "need policy_hz > 0.0, got 0"),
        ({"max_age_s": float("inf")}, "need max_age_s <= 1e.30, got inf"),
        ({"blend": -1}, "need blend >= 0.0, got -1"),
        ({"chunk": 2.5}, "chunk must be int . null, got 2.5"),
        ({"seed": "a"}, "seed must be int, got 'a'"),
        ({"limits": "none"}, "limits must be 'from_demos' or Limits"),
        ({"on_fault": "panic"}, "on_fault must be 'hold', 'stop' or a callback"),
        ({"log": 3}, "log must be the path of a file, got 3"),
        ({"log": ["a"]}, "log must be the path of a file"),
        ({"on_fault": {"clock_jmp": "stop"}}, "no fault 'clock_jmp'; the closest is 'clock_jump' of non"),
        ({"on_fault": {3: "stop"}}, "no fault 3; the closest"),
        ({"on_fault": MappingProxyType({"late_plan": "panic"})}, "'stop' or a callback, got 'panic'"),
    ],
)
def test_unknown_and_invalid_settings_raise(settings, message):
    with pytest.raises(ConfigError, match=message):
        SessionConfig(**settings)
