"""Tests for nsde_policy/methods/baselines/flow.py."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nsde_policy.config import NetworkConfig
from nsde_policy.methods.baselines.flow import (
    StreamingFlow,
    StreamingFlowConfig,
    StreamingFlowSampling,
    interpolate_trajectory,
    stabilise_velocity,
)
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import LINE, RecordingNetwork, make_ramps, make_states

NETWORK = NetworkConfig(width=64, depth=2, dropout=0.0)


def build(**changes: Any) -> StreamingFlow:
    config = StreamingFlowConfig(**{"horizon": 6, "network": NETWORK, **changes})
    return StreamingFlow(config, LINE, generator=make_rng())


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1), st.integers(1, 9))
def test_trajectory_is_piecewise_linear_between_its_knots(time: float, pieces: int):
    knots = torch.randn(1, pieces + 1, 2, generator=make_rng(pieces), dtype=torch.float64)
    at = interpolate_trajectory(knots, torch.tensor([[time]], dtype=torch.float64))
    grid = np.linspace(0, 1, pieces + 1)
    for d in range(2):
        line = knots[0, :, d].numpy()
        assert at.position[0, d].item() == pytest.approx(np.interp(time, grid, line), abs=1e-9)
        piece = min(int(time * pieces), pieces - 1)
        assert at.velocity[0, d].item() == pytest.approx((line[piece + 1] - line[piece]) * pieces)


def test_training_points_are_drawn_from_the_marginals():
    model = build(noise=0.2, gain=2.0)
    model.network = recorder = RecordingNetwork(1, 0.0)  # type: ignore[assignment]
    data = make_ramps(50_000, model.config)
    loss = model.loss(data, make_rng())["velocity"]
    (inputs,) = recorder.inputs
    action, time = inputs[:, 4], (inputs[:, 5] + 1) / 2
    slope = 3 * data.states[:, 0, 0] / 20 * 5  # half ranges per horizon of five periods
    error = action - slope * time
    for low in (0.0, 0.4, 0.8):
        here = (time > low) & (time < low + 0.1)
        expected = 0.2 * math.exp(-2.0 * (low + 0.05))
        assert error[here].std().item() == pytest.approx(expected, rel=0.06)
    torch.testing.assert_close(loss, (slope - 2.0 * error).square().mean(), rtol=1e-4, atol=1e-6)


class ExactField(nn.Module):
    """The stabilised velocity field around one trajectory, in place of a trained network."""

    def __init__(self, knots: Tensor, gain: float) -> None:
        super().__init__()
        self.knots, self.gain = knots, gain

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        at = interpolate_trajectory(self.knots.expand(len(x), -1, -1), (x[:, 5:6] + 1) / 2)
        return stabilise_velocity(at, x[:, 4:5], self.gain)


@pytest.mark.parametrize("substeps", [1, 4])
def test_midpoint_solver_follows_a_trajectory_and_errors_decay_exponentially(substeps: int):
    model, gain = build(), 2.5
    knots = torch.tensor([[[0.0], [0.3], [0.1], [0.1], [-0.4], [0.5]]])
    model.network = ExactField(knots, gain)  # type: ignore[assignment]
    sampling = StreamingFlowSampling(substeps=substeps)
    on, off = (make_states(torch.zeros(1), 2, previous=previous) for previous in (0.0, 2.0))
    exact = model.plan(on, steps=5, rng=make_batch_rng(1), sampling=sampling)
    torch.testing.assert_close(exact[0], 20 * knots[0, 1:], atol=1e-4, rtol=1e-4)
    error = model.plan(off, steps=5, rng=make_batch_rng(1), sampling=sampling) - exact
    decay = 2 * torch.exp(-gain * torch.arange(1, 6) / 5)
    torch.testing.assert_close(error[0, :, 0], decay, atol=0.03, rtol=0)
