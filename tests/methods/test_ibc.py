"""Tests for nsde_policy/methods/ibc.py."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nsde_policy.config import Sampling, TrainConfig
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.ibc import (
    ImplicitBC,
    ImplicitBCConfig,
    ImplicitBCSampling,
    info_nce,
    resample,
    run_langevin,
    search_derivative_free,
)
from nsde_policy.training.loop import fit
from tests.helpers.method_checks import check_loss, check_plan_rows, make_robot_states, train_and_load
from tests.helpers.rng import make_draws, make_rng
from tests.helpers.toy_problems import LINE, make_ramps, make_states, make_two_modes

SMALL: dict[str, Any] = {"width": 32, "depth": 3, "negatives": 32, "dropout": 0.0}
SEARCH = ImplicitBCSampling(samples=256)


def build(**changes: Any) -> ImplicitBC:
    return ImplicitBC(
        ImplicitBCConfig(**{**SMALL, "sampling": SEARCH, **changes}), LINE, generator=make_rng()
    )


@pytest.mark.parametrize("n", [1, 7, 255])
def test_info_nce_of_equal_energies_is_the_log_of_the_number_of_candidates(n: int):
    energy = torch.randn(5, 1, generator=make_rng()).expand(-1, n + 1)
    assert info_nce(energy).item() == pytest.approx(math.log(n + 1), rel=1e-5)


def test_info_nce_of_a_perfect_energy_is_zero():
    energy = torch.full((4, 9), 100.0)
    energy[:, 0] = -100.0
    assert info_nce(energy).item() == pytest.approx(0, abs=1e-6)


def test_info_nce_is_the_cross_entropy_of_the_demonstrated_action():
    energy = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, math.log(2.0)]])
    first = -math.log(math.exp(-1) / (math.exp(-1) + 1 + math.exp(-2)))
    second = -math.log(1 / 2.5)
    assert info_nce(energy).item() == pytest.approx((first + second) / 2, rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-4, 4), min_size=2, max_size=6), st.integers(0, 1000))
def test_candidates_are_resampled_by_their_softmax_probabilities(energies: list[float], seed: int):
    energy = torch.tensor([energies])
    index = resample(energy, torch.rand(1, 20_000, generator=make_rng(seed)))
    share = torch.bincount(index[0], minlength=len(energies)) / 20_000
    torch.testing.assert_close(share, torch.softmax(-energy[0], dim=-1), atol=0.02, rtol=0)


def test_candidates_with_zero_probability_are_not_resampled():
    energy = torch.tensor([[1e4, 0.0, 1e4]])
    uniform = torch.tensor([[0.0, 0.5, 1 - 2**-24]])
    assert resample(energy, uniform).tolist() == [[1, 1, 1]]


def search(energy: Any, *, n: int = 512, iterations: int = 5, rows: int = 3, size: int = 2) -> Tensor:
    candidates = 2 * torch.rand(rows, n, size, generator=make_rng()) - 1
    noise = torch.randn(rows, iterations, n, size, generator=make_rng(1))
    uniform = torch.rand(rows, iterations, n, generator=make_rng(2))
    return search_derivative_free(energy, candidates, noise, uniform, spread=0.1, shrink=0.5)


def test_derivative_free_search_finds_the_minimum_of_a_quadratic():
    centre = torch.tensor([[[0.3, -0.6]], [[-0.9, 0.2]], [[0.0, 0.0]]])
    last = search(lambda a: (a - centre).square().sum(-1) / (2 * 0.05**2))
    torch.testing.assert_close(last.mean(1), centre[:, 0], atol=0.02, rtol=0)
    assert last.std(1).max().item() < 0.06
    assert last.abs().max().item() <= 1


def test_derivative_free_search_finds_both_minima():
    def energy(a: Tensor) -> Tensor:
        return (a[..., 0].abs() - 0.5).square() / (2 * 0.05**2)

    last = search(energy, size=1)[..., 0]
    right = (last > 0).float().mean(1)
    assert bool(((right > 0.2) & (right < 0.8)).all())
    assert last.abs().min().item() > 0.25


def test_langevin_dynamics_samples_a_gaussian_energy():
    """With step η on the energy a²/2s², the recursion is stationary at variance s² / (1 − η/4s²)."""
    s, size, n, steps = 0.15, 0.01, 4000, 60
    noise = torch.randn(1, steps, n, 1, generator=make_rng())
    start = 0.5 * (2 * torch.rand(1, n, 1, generator=make_rng(1)) - 1)
    last = run_langevin(lambda a: a.square().sum(-1) / (2 * s**2), start, noise, [size] * steps)
    expected = s**2 / (1 - size / (4 * s**2))
    assert last.mean().item() == pytest.approx(0, abs=4 * s / math.sqrt(n))
    assert last.var().item() == pytest.approx(expected, rel=0.08)


class GaussianEnergy(nn.Module):
    """Energy of actions N(0, s²) in half ranges, times a factor."""

    def __init__(self, s: float, factor: float) -> None:
        super().__init__()
        self.s, self.factor = s, factor

    def forward(self, features: Tensor, actions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.factor * actions.square().sum(-1) / (2 * self.s**2)


def test_both_losses_are_lowest_for_the_negative_log_density():
    model, s, n = build(negatives=16, local_negatives=16, local_noise=0.2), 0.2, 100_000
    actions = 20 * s * torch.randn(n, 2, 1, generator=make_rng(3))
    data = Windows(make_states(torch.zeros(n), 2), actions)
    losses = []
    for factor in (0.7, 1.0, 1.4):
        model.network = GaussianEnergy(s, factor)  # type: ignore[assignment]
        losses.append(model.loss(data, make_rng()).parts)
    for name in ("info_nce", "local"):
        low, right, high = (parts[name].item() for parts in losses)
        assert right < min(low, high)


FIT = TrainConfig(steps=400, batch_size=128, learning_rate=5e-3, ema=0.98)
SHORT_FIT = TrainConfig(steps=250, batch_size=64, learning_rate=5e-3, ema=0.98)


@pytest.fixture(scope="module")
def bimodal_model() -> ImplicitBC:
    model = build()
    fit(model, make_two_modes(4000, model.config), FIT, seed=0)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [SEARCH, ImplicitBCSampling(inference="langevin", samples=256, iterations=60, step=0.02)],
    ids=["derivative_free", "langevin"],
)
def test_plans_reach_both_demonstrated_modes_but_not_their_mean(
    bimodal_model: ImplicitBC, sampling: ImplicitBCSampling
):
    plan = bimodal_model.plan(
        make_states(torch.zeros(60), 2), steps=1, draws=make_draws(60), sampling=sampling
    )[:, 0, 0]
    assert 10 < int((plan > 0).sum()) < 50
    assert bool(((plan.abs() - 10).abs() < 4).all())


@pytest.mark.slow
@pytest.mark.parametrize("local", [0, 16])
def test_linear_actions_are_learned(local: int):
    model = build(local_negatives=local)
    fit(model, make_ramps(4000, model.config, slope=12.0), SHORT_FIT, seed=0)
    obs = torch.linspace(-0.8, 0.8, 9)
    sampling = ImplicitBCSampling(samples=256, answer="best")
    plan = model.plan(make_states(obs, 2), steps=1, draws=make_draws(9), sampling=sampling)
    error = (plan[:, 0, 0] - 12 * obs).abs()
    assert error.max().item() < 2.5
    assert error.mean().item() < 1.0


def test_plans_do_not_depend_on_past_actions():
    model = build()
    states = make_states(torch.linspace(-1, 1, 4), 2)
    other = states.clone()
    other[..., 1] = 7.0
    one, two = (model.plan(s, steps=1, draws=make_draws(4)) for s in (states, other))
    assert torch.equal(one, two)


@pytest.mark.parametrize("inference", ["derivative_free", "langevin"])
def test_plan_makes_the_declared_number_of_network_calls(inference: Any):
    model, calls = build(), []
    model.network.register_forward_hook(lambda *_: calls.append(1))
    for iterations in (1, 4):
        sampling = ImplicitBCSampling(inference=inference, samples=8, iterations=iterations)
        calls.clear()
        model.plan(make_states(torch.zeros(2), 2), steps=1, draws=make_draws(2), sampling=sampling)
        assert len(calls) == model.network_calls(1, sampling) == iterations


@pytest.mark.parametrize("local", [0, 4])
def test_loss_needs_no_host_synchronisation_and_draws_only_from_its_generator(local: int):
    model = build(dropout=0.2, local_negatives=local)
    names = model.stages()[0].losses
    loss = check_loss(model, lambda: make_two_modes(8, model.config), names)
    assert set(loss.parts) == set(names)
    loss.total(names).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_run_is_saved_and_loaded_and_rows_are_planned_independently(tmp_path: Path):
    config = ImplicitBCConfig(**{**SMALL, "dropout": 0.1, "horizon": 3, "sampling": SEARCH})
    _, model = train_and_load(config, tmp_path, chunk=1)
    check_plan_rows(model, make_robot_states(5, 2), steps=2, act_dim=3)


@pytest.mark.parametrize(
    "changes",
    [{"negatives": 0}, {"local_negatives": -1}, {"local_noise": 0.0}, {"dropout": 1.0}, {"blur": -1.0}],
)
def test_invalid_settings_raise(changes: dict[str, Any]):
    with pytest.raises(ConfigError):
        ImplicitBCConfig(**changes)


@pytest.mark.parametrize("changes", [{"samples": 0}, {"iterations": 0}, {"noise": 0.0}, {"step": -1.0}])
def test_invalid_sampling_raises(changes: dict[str, Any]):
    with pytest.raises(ConfigError):
        ImplicitBCSampling(**changes)
    with pytest.raises(ConfigError, match="Sampling, got Sampling"):
        build().plan(make_states(torch.zeros(1), 2), steps=1, draws=make_draws(1), sampling=Sampling())
