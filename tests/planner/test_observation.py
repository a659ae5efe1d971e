"""Tests for planner/observation.py: accepted types of observations, and errors."""

import typing

import numpy as np
import pytest
import torch

from nsde_policy.assets import SHIPPED_POLICIES
from nsde_policy.bounds import Occluder
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.errors import PolicyInputError
from nsde_policy.eval.disturbances import CameraCondition, CameraDisturbances
from nsde_policy.inference.policy import Policy
from nsde_policy.planner.observation import convert_observation, find_implausible, find_implausible_frame
from tests.helpers.numpy_planner import SPEC

START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.from_pretrained()


def list_forms(obs):
    yield obs
    yield obs.tolist()
    yield torch.from_numpy(obs)
    yield torch.from_numpy(obs).requires_grad_()
    yield {"observation.state": torch.from_numpy(obs)}
    yield {"observation.state": obs[:2], "observation.environment_state": obs[2:], "task": "push"}


def test_arrays_lists_tensors_and_mappings_give_the_same_plan(policy):
    actions, chunks = [], []
    for obs in list_forms(START):
        policy.reset(seed=3)
        actions.append(policy.select_action(obs))
        chunks.append(policy.predict_action_chunk(obs, generator=torch.Generator().manual_seed(0)))
    assert all(np.array_equal(action, actions[0]) for action in actions)
    assert all(np.array_equal(chunk, chunks[0]) for chunk in chunks)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"state": START}, "needs the key 'observation.state', found 'state'"),
        ({}, "found nothing"),
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
        (START * [1, 1, 1, 1, 180 / np.pi], "degrees"),
        (START * [1e-3, 1e-3, 1e-3, 1e-3, 1], "unit"),
        (START[[4, 0, 1, 2, 3]], "order"),
    ],
)
def test_invalid_observations_raise_one_line_errors(policy, obs, message):
    with pytest.raises(PolicyInputError, match=message) as raised:
        policy.predict_action_chunk(obs)
    assert "\n" not in str(raised.value)


def test_only_values_far_outside_the_demonstrated_range_are_implausible():
    assert find_implausible(np.array([-20.0, 130.0, -3.0]), SPEC) is None
    assert "was in [0, 100]" in find_implausible(np.array([-101.0, 50.0, 0.0]), SPEC)
    assert "radians" in find_implausible(np.array([50.0, 50.0, 90.0]), SPEC)


def test_bfloat16_tensors_are_accepted():
    half = torch.tensor([1.5, -2.25, 3.0], dtype=torch.bfloat16)
    assert convert_observation(half, SPEC).tolist() == [1.5, -2.25, 3.0]


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("kind", typing.get_args(Occluder))
def test_frames_with_hidden_parts_are_plausible(kind: Occluder, share: float):
    (seen,) = Policy.from_pretrained(SHIPPED_POLICIES["pixels"]).calibration.frames
    frame = benchmark_frame(np.array([100.0, 100.0]), np.array([256.0, 256.0, 0.5]))
    for seed in range(5):
        disturbed = CameraDisturbances(CameraCondition(occlusion=share, occluder=kind), seed)
        hidden = disturbed.change_frame(frame, 1)
        dark = np.where((hidden == frame).all(-1, keepdims=True), frame, 0)
        assert not find_implausible_frame(hidden, seen)
        assert not find_implausible_frame(dark, seen)
