"""Tests for nsde_policy/core/state.py."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsde_policy.core.spec import StateSpec, wrap_angle
from nsde_policy.core.state import StateLayout, measure_state, wrap_circular
from nsde_policy.errors import ConfigError, DemoError

SPEC = StateSpec(
    obs_dim=2, act_dim=1, circular=(1,), low=(0.0, -9.0, -1.0), high=(10.0, 9.0, 1.0),
    increment_std=(0.5, 0.1, 0.2),
)  # fmt: skip


def test_features_are_scaled_positions_then_sine_and_cosine_of_angles():
    layout = StateLayout(SPEC)
    x = torch.tensor([[0.0, math.pi / 2, 1.0], [10.0, 0.0, -1.0]])
    expected = torch.tensor([[-1.0, 1, 1, 0], [1, -1, 0, 1]])
    torch.testing.assert_close(layout.features(x), expected, atol=1e-6, rtol=0)
    assert layout.feature_dim == 4


@given(angle=st.floats(-20, 20), turns=st.integers(-3, 3), step=st.floats(-3.1, 3.1))
@settings(max_examples=50, deadline=None)
def test_increments_and_features_ignore_full_turns_of_an_angle(angle: float, turns: int, step: float):
    layout = StateLayout(SPEC).double()
    x = torch.tensor([1.0, angle, 0.0], dtype=torch.float64)
    x_next = torch.tensor([7.0, angle + step + 2 * math.pi * turns, 0.0], dtype=torch.float64)
    assert layout.increment(x, x_next).tolist() == pytest.approx([6.0, step, 0.0], abs=1e-9)
    torch.testing.assert_close(layout.features(x)[..., 2:], layout.features(x + 2 * math.pi * turns)[..., 2:])


def test_observation_features_do_not_depend_on_the_action():
    layout, x = StateLayout(SPEC), torch.tensor([1.0, 2.0, 3.0])
    features = layout.obs_features(x)
    assert len(features) == layout.obs_feature_dim
    assert torch.equal(features, layout.obs_features(x + torch.tensor([0.0, 0.0, 1.0])))
    angles = [c for c in SPEC.circular if c < SPEC.obs_dim]
    assert len(features) == SPEC.obs_dim + len(angles)
    assert set(features.tolist()) <= set(layout.features(x).tolist())


def test_to_unit_maps_the_action_range_to_minus_one_and_one_and_from_unit_inverts_it():
    layout = StateLayout(SPEC)
    ends = torch.tensor([[SPEC.low[-1]], [SPEC.high[-1]]])
    assert layout.to_unit(ends).flatten().tolist() == [-1.0, 1.0]
    assert torch.allclose(layout.from_unit(layout.to_unit(ends)), ends)


def test_measure_state_finds_range_and_increment_std():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(5000, 2, generator=generator) * torch.tensor([100.0, 6.28])
    x_next = x + torch.randn(5000, 2, generator=generator) * torch.tensor([3.0, 0.05])
    x_next[:, 1] = x_next[:, 1].remainder(2 * math.pi)
    spec = measure_state(x, x_next, act_dim=1, circular=(1,))
    assert (spec.obs_dim, spec.act_dim, spec.circular) == (1, 1, (1,))
    assert spec.increment_std == pytest.approx((3.0, 0.05), rel=0.05)
    assert spec.low[0] <= x[:, 0].min()
    assert spec.high[0] >= x_next[:, 0].max()


@pytest.mark.parametrize("value", [0.0, 2.0**24, -1e9, 1e18])
def test_features_of_a_constant_dimension_are_finite(value: float):
    x = torch.full((10, 1), value)
    spec = measure_state(x, x)
    assert StateLayout(spec).features(x).isfinite().all()
    assert spec.increment_std[0] > 0


def test_constant_increments_are_scaled_by_their_size():
    clock = torch.arange(50.0)[:, None]
    assert measure_state(clock[:-1], clock[1:]).increment_std[0] == pytest.approx(1.0)


def test_spec_survives_json_and_layout_is_in_the_state_dict():
    assert StateSpec.from_dict(json.loads(json.dumps(SPEC.to_dict()))) == SPEC
    assert "increment_std" in StateLayout(SPEC).state_dict()


def test_invalid_specs_and_states_raise():
    with pytest.raises(ConfigError, match="increment_std must hold 3 finite numbers"):
        StateSpec(2, 1, (), (0.0,) * 3, (1.0,) * 3, (1.0,))
    with pytest.raises(ConfigError, match="circular"):
        StateSpec(1, 0, (1,), (0.0,), (1.0,), (1.0,))
    with pytest.raises(ConfigError, match="low < high"):
        StateSpec(1, 0, (), (1.0,), (1.0,), (1.0,))
    with pytest.raises(ConfigError, match="needs the setting"):
        StateSpec.from_dict({"obs_dim": 1})
    with pytest.raises(DemoError, match="not finite"):
        measure_state(torch.full((3, 1), math.nan), torch.zeros(3, 1))
    with pytest.raises(DemoError, match="two or more pairs"):
        measure_state(torch.zeros(1, 1), torch.zeros(1, 1))


def test_torch_and_numpy_wrap_angles_alike():
    turns = np.linspace(-20.0, 20.0, 4001)
    circular = wrap_circular(torch.from_numpy(turns), torch.tensor(True)).numpy()
    np.testing.assert_array_equal(wrap_angle(turns), circular)
    assert -math.pi <= circular.min() <= circular.max() < math.pi
    np.testing.assert_allclose(np.exp(1j * circular), np.exp(1j * turns), atol=1e-12)
