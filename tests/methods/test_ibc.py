"""Tests for nsde_policy/methods/baselines/ibc.py."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nsde_policy.core.batches import Windows
from nsde_policy.methods.baselines.ibc import (
    ImplicitBC,
    ImplicitBCConfig,
    info_nce,
    resample,
    search_derivative_free,
)
from tests.helpers.rng import make_rng
from tests.helpers.toy_problems import LINE, make_states


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


def test_derivative_free_search_finds_the_minimum_of_a_quadratic():
    centre = torch.tensor([[[0.3, -0.6]], [[-0.9, 0.2]], [[0.0, 0.0]]])
    candidates = 2 * torch.rand(3, 512, 2, generator=make_rng()) - 1
    noise = torch.randn(3, 5, 512, 2, generator=make_rng(1))
    uniform = torch.rand(3, 5, 512, generator=make_rng(2))
    last = search_derivative_free(
        lambda a: (a - centre).square().sum(-1) / (2 * 0.05**2),
        candidates,
        noise,
        uniform,
        spread=0.1,
        shrink=0.5,
    )
    torch.testing.assert_close(last.mean(1), centre[:, 0], atol=0.02, rtol=0)
    assert last.std(1).max().item() < 0.06
    assert last.abs().max().item() <= 1


class GaussianEnergy(nn.Module):
    """Energy of actions N(0, s²) in half ranges, times a factor."""

    def __init__(self, s: float, factor: float) -> None:
        super().__init__()
        self.s, self.factor = s, factor

    def forward(self, features: Tensor, actions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.factor * actions.square().sum(-1) / (2 * self.s**2)


def test_the_loss_is_lowest_for_the_negative_log_density():
    config, s, n = ImplicitBCConfig(width=32, depth=3, negatives=16, dropout=0.0), 0.2, 100_000
    model = ImplicitBC(config, LINE, generator=make_rng())
    actions = 20 * s * torch.randn(n, 2, 1, generator=make_rng(3))
    data = Windows(make_states(torch.zeros(n), 2), actions)
    losses = []
    for factor in (0.7, 1.0, 1.4):
        model.network = GaussianEnergy(s, factor)  # type: ignore[assignment]
        losses.append(model.loss(data, make_rng())["info_nce"].item())
    low, right, high = losses
    assert right < min(low, high)
