"""Tests for interface/roughness.py: known second differences, and what is left out of them."""

from dataclasses import replace

import numpy as np
import pytest

from nsde_policy.core.spec import StateSpec
from nsde_policy.interface.roughness import (
    RoughnessMeter,
    compare_roughness,
    describe_roughness,
    measure_roughness,
    square_second_differences,
)

SPEC = StateSpec(
    obs_dim=1, act_dim=2, circular=(), low=(0.0, -1.0, 0.0), high=(1.0, 1.0, 10.0), increment_std=(1.0,) * 3
)  # fmt: skip


def test_second_differences_are_divided_by_the_demonstrated_range():
    time = np.arange(5.0)
    parabolas = np.stack([time**2, 5 * time**2], axis=1)  # second differences 2 and 10: 1 range each
    np.testing.assert_allclose(square_second_differences(parabolas, SPEC), [1.0, 1.0, 1.0])
    assert measure_roughness([np.stack([time, 3 * time], axis=1)], SPEC) == 0.0


def test_episodes_are_not_joined():
    still, elsewhere = np.zeros((4, 2)), np.full((4, 2), 5.0)
    assert measure_roughness([still, elsewhere], SPEC) == 0.0
    assert measure_roughness([np.concatenate([still, elsewhere])], SPEC) > 1.0
    assert measure_roughness([still[:2], elsewhere[:2]], SPEC) is None


def test_a_steady_turn_is_smooth_where_its_angle_jumps():
    turn = np.stack([np.linspace(0, 7, 50), np.linspace(0, 7, 50)], axis=1)
    turn[:, 0] = (turn[:, 0] + np.pi) % (2 * np.pi) - np.pi
    assert measure_roughness([turn], SPEC) > 0.1
    assert measure_roughness([turn], replace(SPEC, circular=(1,))) == pytest.approx(0.0, abs=1e-9)


def test_switches_are_left_out():
    commands = np.zeros((6, 2))
    commands[3:, 1] = 10.0
    assert measure_roughness([commands], SPEC) > 0.0
    assert measure_roughness([commands], replace(SPEC, binary=((1, 0.0, 10.0),))) == 0.0
    switches = replace(SPEC, binary=((0, 0.0, 1.0), (1, 0.0, 10.0)))
    assert measure_roughness([commands], switches) is None


def test_a_meter_agrees_and_does_not_span_a_missing_period():
    commands = np.random.default_rng(0).normal(size=(20, 2))
    meter = RoughnessMeter(SPEC)
    for period, command in enumerate(commands):
        if period != 10:
            meter.add(period, command)
    assert meter.roughness == pytest.approx(measure_roughness([commands[:10], commands[11:]], SPEC))
    meter.add(0, commands[0])  # a new episode
    assert meter.roughness == pytest.approx(measure_roughness([commands[:10], commands[11:]], SPEC))


def test_a_ratio_is_unknown_without_demonstrations_that_accelerate():
    assert compare_roughness(1.0, None) is None
    assert compare_roughness(None, 1.0) is None
    assert compare_roughness(1.0, 0.0) is None
    assert compare_roughness(3.0, 2.0) == 1.5


def test_only_rough_commands_get_advice():
    assert describe_roughness(1.3) == "commands are 1.3 × as rough as the demonstrations"
    assert "--sampling diffusion=0" in describe_roughness(2.1)
    assert "--chunk" in describe_roughness(2.1)
