"""Tests for nsde_policy/methods/flow.py."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import NetworkConfig, Sampling, TrainConfig
from nsde_policy.errors import ConfigError
from nsde_policy.methods.flow import (
    StreamingFlow,
    StreamingFlowConfig,
    StreamingFlowSampling,
    interpolate_trajectory,
    stabilise_velocity,
)
from nsde_policy.training.loop import fit
from tests.helpers.toy_problems import (
    LINE,
    draws,
    ramps,
    robot_states,
    seeded,
    states_of,
    trained_and_loaded,
    two_ways,
)

NETWORK = NetworkConfig(width=64, depth=2, dropout=0.0)


def build(**changes: Any) -> StreamingFlow:
    config = StreamingFlowConfig(**{"horizon": 6, "network": NETWORK, **changes})
    return StreamingFlow(config, LINE, generator=seeded())


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1), st.integers(1, 9))
def test_a_trajectory_runs_straight_between_its_knots(time: float, pieces: int):
    knots = torch.randn(1, pieces + 1, 2, generator=seeded(pieces), dtype=torch.float64)
    at = interpolate_trajectory(knots, torch.tensor([[time]], dtype=torch.float64))
    grid = np.linspace(0, 1, pieces + 1)
    for d in range(2):
        line = knots[0, :, d].numpy()
        assert at.position[0, d].item() == pytest.approx(np.interp(time, grid, line), abs=1e-9)
        piece = min(int(time * pieces), pieces - 1)
        assert at.velocity[0, d].item() == pytest.approx((line[piece + 1] - line[piece]) * pieces)


def test_the_stabilised_flow_has_the_marginals_that_it_is_trained_on():
    """From N(ξ(0), σ₀²), following ξ' − k (a − ξ) leads through N(ξ(t), σ₀² e^(−2kt))."""
    noise, gain, n, steps = 0.3, 2.5, 20_000, 400
    knots = torch.tensor([[0.0], [0.5], [0.2], [0.2], [1.0]]).expand(n, -1, -1)
    action = noise * torch.randn(n, 1, generator=seeded())
    for i in range(steps):
        at = interpolate_trajectory(knots, torch.full((n, 1), i / steps))
        if i in (50, 150, 250, 350):
            spread = noise * math.exp(-gain * i / steps)
            assert (action - at.position).mean().item() == pytest.approx(0, abs=4 * spread / math.sqrt(n))
            assert action.std().item() == pytest.approx(spread, rel=0.03)
        action = action + stabilise_velocity(at, action, gain) / steps
    assert action.mean().item() == pytest.approx(1.0, abs=0.01)


class Asked(nn.Module):
    """Answers a fixed velocity, and remembers what it was shown."""

    def __init__(self, velocity: float = 0.0) -> None:
        super().__init__()
        self.velocity, self.shown = velocity, []

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        self.shown.append(x)
        return torch.full_like(x[:, :1], self.velocity)


def test_training_points_are_drawn_from_the_marginals():
    model = build(noise=0.2, gain=2.0)
    model.network = asked = Asked()  # type: ignore[assignment]
    data = ramps(50_000, model.config)
    loss = model.loss(data, seeded()).parts["velocity"]
    (shown,) = asked.shown
    action, time = shown[:, 4], (shown[:, 5] + 1) / 2
    slope = 3 * data.states[:, 0, 0] / 20 * 5  # half ranges per horizon of five periods
    error = action - slope * time
    for low in (0.0, 0.4, 0.8):
        here = (time > low) & (time < low + 0.1)
        expected = 0.2 * math.exp(-2.0 * (low + 0.05))
        assert error[here].std().item() == pytest.approx(expected, rel=0.06)
    torch.testing.assert_close(loss, (slope - 2.0 * error).square().mean(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("substeps", [1, 3])
def test_a_plan_starts_from_the_command_in_force_and_takes_as_many_calls_as_it_says(substeps: int):
    model, sampling = build(), StreamingFlowSampling(substeps=substeps, solver="euler")
    model.network = asked = Asked(velocity=0.5)  # type: ignore[assignment]
    states = states_of(torch.zeros(2), 2, previous=4.0)
    plan = model.plan(states, steps=3, draws=draws(2), sampling=sampling)
    period = 0.5 * 20 / 5
    torch.testing.assert_close(plan[0, :, 0], 4.0 + period * torch.arange(1.0, 4.0))
    assert len(asked.shown) == model.network_calls(3, sampling) == 3 * substeps


class Exact(nn.Module):
    """The stabilised velocity field around one trajectory, in place of a trained network."""

    def __init__(self, knots: Tensor, gain: float) -> None:
        super().__init__()
        self.knots, self.gain = knots, gain

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        at = interpolate_trajectory(self.knots.expand(len(x), -1, -1), (x[:, 5:6] + 1) / 2)
        return stabilise_velocity(at, x[:, 4:5], self.gain)


@pytest.mark.parametrize("substeps", [1, 4])
def test_the_midpoint_solver_follows_a_trajectory_exactly_and_forgets_errors_as_the_flow_does(substeps: int):
    model, gain = build(), 2.5
    knots = torch.tensor([[[0.0], [0.3], [0.1], [0.1], [-0.4], [0.5]]])
    model.network = Exact(knots, gain)  # type: ignore[assignment]
    sampling = StreamingFlowSampling(substeps=substeps)
    on, off = (states_of(torch.zeros(1), 2, previous=previous) for previous in (0.0, 2.0))
    exact = model.plan(on, steps=5, draws=draws(1), sampling=sampling)
    torch.testing.assert_close(exact[0], 20 * knots[0, 1:], atol=1e-4, rtol=1e-4)
    strayed = model.plan(off, steps=5, draws=draws(1), sampling=sampling) - exact
    decay = 2 * torch.exp(-gain * torch.arange(1, 6) / 5)
    torch.testing.assert_close(strayed[0, :, 0], decay, atol=0.03, rtol=0)


def test_euler_steps_converge_to_the_same_trajectory():
    model, knots = build(), torch.tensor([[[0.0], [0.3], [0.1], [0.1], [-0.4], [0.5]]])
    model.network = Exact(knots, 2.5)  # type: ignore[assignment]
    sampling = StreamingFlowSampling(substeps=50, solver="euler")
    plan = model.plan(states_of(torch.zeros(1), 2), steps=5, draws=draws(1), sampling=sampling)
    torch.testing.assert_close(plan[0], 20 * knots[0, 1:], atol=0.2, rtol=0)


@pytest.fixture(scope="module")
def ramp_flow() -> StreamingFlow:
    model = build(noise=0.2)
    fit(
        model,
        ramps(4000, model.config),
        TrainConfig(steps=1500, batch_size=256, learning_rate=3e-3, ema=0.98),
        seed=0,
    )
    return model


@pytest.mark.slow
def test_the_trained_field_reproduces_a_trajectory(ramp_flow: StreamingFlow):
    obs = torch.linspace(-0.9, 0.9, 7)
    plan = ramp_flow.plan(states_of(obs, 2), steps=5, draws=draws(7))
    torch.testing.assert_close(plan[..., 0], 3 * obs[:, None] * torch.arange(1, 6), atol=0.8, rtol=0)


def test_the_trained_field_pulls_back_what_strays(ramp_flow: StreamingFlow):
    """An error e of the start is e · e^(−k) at the end of the trajectory, here 0.08 of it."""
    rows = 200
    states = states_of(torch.full((rows,), 0.5), 2)
    sampling = StreamingFlowSampling(substeps=4, start=1.0)
    plan = ramp_flow.plan(states, steps=5, draws=draws(rows), sampling=sampling)[..., 0]
    start = 20 * 0.2
    assert plan[:, 0].std().item() == pytest.approx(start * math.exp(-2.5 / 5), rel=0.2)
    assert plan[:, -1].std().item() < 0.2 * start
    assert plan[:, -1].mean().item() == pytest.approx(7.5, abs=0.8)


@pytest.mark.slow
def test_both_ways_are_taken_when_the_start_is_drawn():
    """The field that leads to ±10 with equal chance splits its starts; none ends half way."""
    model = build(noise=0.3)
    fit(
        model,
        two_ways(4000, model.config),
        TrainConfig(steps=1500, batch_size=256, learning_rate=3e-3, ema=0.98),
        seed=0,
    )
    sampling = StreamingFlowSampling(substeps=4, start=1.0)
    states = states_of(torch.zeros(100), 2)
    end = model.plan(states, steps=5, draws=draws(100), sampling=sampling)[:, -1, 0]
    assert 25 < int((end > 0).sum()) < 75
    assert int((end.abs() < 5).sum()) <= 5


def test_the_loss_never_waits_for_its_data_and_draws_from_its_generator_alone():
    model = build(network=NetworkConfig(width=16, depth=2))
    before = torch.random.get_rng_state()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(ramps(8, model.config), seeded()).total(("velocity",)).shape == ()
    one, two = (model.loss(ramps(8, model.config), seeded()).parts for _ in range(2))
    assert torch.equal(one["velocity"], two["velocity"])
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_run_saves_loads_and_answers_each_row_for_itself(tmp_path: Path):
    config = StreamingFlowConfig(network=NETWORK, sampling=StreamingFlowSampling(start=1.0))
    _, model = trained_and_loaded(config, tmp_path, chunk=8)
    states = robot_states(5, 2)
    whole = model.plan(states, steps=8, draws=draws(5))
    parts = [model.plan(states[i : i + 1], steps=8, draws=draws(1, seed=i)) for i in range(5)]
    assert whole.shape == (5, 8, 3)
    torch.testing.assert_close(whole, torch.cat(parts))
    assert torch.equal(whole, model.plan(states, steps=8, draws=draws(5)))


@pytest.mark.parametrize("changes", [{"noise": 0.0}, {"gain": -1.0}, {"horizon": 1}])
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any]):
    with pytest.raises(ConfigError):
        StreamingFlowConfig(**changes)


def test_sampling_that_cannot_work_is_refused():
    for changes in ({"substeps": 0}, {"start": -1.0}):
        with pytest.raises(ConfigError):
            StreamingFlowSampling(**changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Sampling, got Sampling"):
        build().plan(states_of(torch.zeros(1), 2), steps=1, draws=draws(1), sampling=Sampling())
