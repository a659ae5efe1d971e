"""Tests for planner/observation.py: accepted types of observations, and errors."""

import typing
from dataclasses import replace

import numpy as np
import pytest
import torch

from nsde_policy.bounds import Occluder
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.errors import PolicyInputError
from nsde_policy.eval.rollouts.disturbances import CameraCondition, CameraDisturbances
from nsde_policy.interface.observation import ObservationMonitor, convert_observation, find_implausible_frame
from nsde_policy.policy.policy import Policy
from tests.helpers.numpy_planner import SPEC

START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.from_pretrained()


def test_arrays_lists_tensors_and_mappings_give_the_same_plan(policy):
    tensor, actions = torch.from_numpy(START), []
    whole = {"observation.state": tensor}
    parts = {"observation.state": START[:2], "observation.environment_state": START[2:], "task": "push"}
    for obs in (START, START.tolist(), tensor, tensor.clone().requires_grad_(), whole, parts):
        policy.reset(seed=3)
        actions.append(policy.select_action(obs))
    assert all(np.array_equal(action, actions[0]) for action in actions)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"state": START}, "needs the key 'observation.state', got 'state'"),
        ({}, "got nothing"),
        ({"observation.state": START[:2]}, r"\(5,\) or \(B, 5\), got \(2,\)"),
        (
            {"observation.state": START[None], "observation.environment_state": START},
            "cannot be concatenated",
        ),
        (np.zeros((2, 2, 5)), r"\(5,\) or \(B, 5\)"),
        (np.zeros((0, 5)), r"\(B, 5\), got \(0, 5\)"),
        ("five numbers", "must hold numbers, got str"),
        (np.full(5, 1 + 2j), "must hold numbers, got ndarray"),
        ({"observation.state": torch.full((5,), 1 + 2j)}, "must hold numbers, got Tensor"),
        (np.array([START, START * np.nan]), "must be finite"),
        (START * [1e-3, 1e-3, 1e-3, 1e-3, 1], "unit"),
        (START * [1e3, 1e3, 1e3, 1e3, 1], "wrong units in every column: .* column order"),
    ],
)
def test_invalid_observations_raise_one_line_errors(policy, obs, message):
    policy.reset()
    with pytest.raises(PolicyInputError, match=message) as raised:
        policy.select_action(obs)
    assert "\n" not in str(raised.value)


def test_values_that_leave_the_demonstrated_range_by_a_multiple_are_far_outside():
    monitor = ObservationMonitor(SPEC)
    assert monitor.describe_outside(np.array([-20.0, 130.0, -3.0])) is None
    assert "was in [0, 100]" in monitor.describe_outside(np.array([-101.0, 50.0, 0.0]))
    assert "degrees" in monitor.describe_outside(np.array([50.0, 50.0, 90.0]))


def compare(*observed: tuple[float, ...], columns=SPEC) -> list[str]:
    """Return for each observation of an episode whether it is accepted, reported or a jump."""
    monitor, found = ObservationMonitor(columns), []
    for period, obs in enumerate(observed):
        compared = monitor.check(np.array(obs), period)
        found.append("jump" if compared.is_jump else "reported" if compared.outside else "accepted")
    return found


def test_value_that_creeps_out_of_the_range_is_reported_and_never_a_jump():
    path = [(50.0, y, 1.0) for y in np.linspace(50, 500, 12)]
    assert compare(*path) == ["accepted"] * 4 + ["reported"] * 8
    turns = [(50.0, 50.0, angle) for angle in (1.0, 6.0, 12.0, 13.0, 18.0)]
    assert compare(*turns) == ["accepted"] * 3 + ["reported"] * 2


def test_jump_is_a_fault_for_two_periods_if_the_value_stays_and_again_after_it_came_back():
    good, far = (50.0, 50.0, 1.0), (50.0, -900.0, 1.0)
    assert compare(good, far, good, far, far, far, far) == [
        *("accepted", "jump", "accepted", "jump", "jump", "reported", "reported")
    ]
    moving = [(50.0, y, 1.0) for y in (-900.0, -1900.0, 2900.0, 3900.0)]
    assert compare(good, *moving) == ["accepted", "jump", "jump", "reported", "reported"]
    assert compare(good, (50.0, 50.0, 57.3)) == ["accepted", "jump"], "radians became degrees"


def test_sensor_that_drops_to_zero_is_a_jump():
    far_from_zero = replace(SPEC, circular=(), low=(60.0,) * 5, high=(300.0,) * 5)
    assert compare((70.0, 80.0, 90.0), (0.0,) * 3, (0.0,) * 3, (0.0,) * 3, columns=far_from_zero) == [
        *("accepted", "jump", "jump", "reported")
    ]


def test_one_far_value_of_the_first_observation_is_reported():
    assert compare((50.0, -900.0, 1.0)) == ["reported"]
    with pytest.raises(PolicyInputError, match="wrong units in every column"):
        compare((5e4, 5e4, 1.0))


def test_constants_and_switches_do_not_hide_wrong_units():
    arm = replace(
        SPEC, circular=(), low=(0.2, 0.2, 1.0, 0.0, 0.0), high=(0.8, 0.8, 2.0, 1.0, 1.0)
    )  # 1.0: constant
    with pytest.raises(PolicyInputError, match="wrong units in every column"):
        compare((300.0, 300.0, 1.0), columns=arm)


def test_bfloat16_tensors_are_accepted():
    half = torch.tensor([1.5, -2.25, 3.0], dtype=torch.bfloat16)
    assert convert_observation(half, SPEC).tolist() == [1.5, -2.25, 3.0]


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("kind", typing.get_args(Occluder))
def test_frames_with_hidden_parts_are_plausible(kind: Occluder, share: float):
    (seen,) = Policy.from_pretrained("shipped-pixels").calibration.frames
    frame = benchmark_frame(np.array([100.0, 100.0]), np.array([256.0, 256.0, 0.5]))
    for seed in range(5):
        disturbed = CameraDisturbances(CameraCondition(occlusion=share, occluder=kind), seed)
        hidden = disturbed.change_frame(frame, 1)
        dark = np.where((hidden == frame).all(-1, keepdims=True), frame, 0)
        assert not find_implausible_frame(hidden, seen)
        assert not find_implausible_frame(dark, seen)
