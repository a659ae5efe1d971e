"""Tests for nsde_policy/methods/baselines/lstm_gmm.py."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions

from nsde_policy.errors import ConfigError
from nsde_policy.methods.baselines.lstm_gmm import LSTMGMM, LSTMGMMConfig, LSTMGMMSampling, Mixture
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import WITH_ANGLE, make_random_windows


def build(**changes: Any) -> LSTMGMM:
    config = LSTMGMMConfig(**{"history": 4, "horizon": 4, "hidden": 12, **changes})
    return LSTMGMM(config, WITH_ANGLE, generator=make_rng()).eval()


@settings(max_examples=25, deadline=None)
@given(modes=st.integers(1, 6), dim=st.integers(1, 4), seed=st.integers(0, 1000))
def test_likelihood_equals_that_of_a_mixture_of_independent_normals(modes: int, dim: int, seed: int):
    g = make_rng(seed)
    logits, mean = torch.randn(7, 3, modes, generator=g), torch.randn(7, 3, modes, dim, generator=g)
    ours = Mixture(logits, mean, torch.rand(7, 3, modes, dim, generator=g) + 0.05)
    x = torch.randn(7, 3, dim, generator=make_rng(seed + 1))
    theirs = distributions.MixtureSameFamily(
        distributions.Categorical(logits=ours.logits),
        distributions.Independent(distributions.Normal(ours.mean, ours.std), 1),
    )
    torch.testing.assert_close(ours.log_likelihood(x), theirs.log_prob(x), rtol=1e-4, atol=1e-4)


def test_loss_is_the_mean_negative_log_likelihood_of_all_steps():
    """Compare with the LSTM applied to one state at a time, oldest first."""
    model, batch = build(), make_random_windows(30, 4)
    memories: list[Any] = [None] * len(model.lstm)
    expected = []
    for age in (3, 2, 1, 0):
        h = model.layout.obs_features(batch.states[:, age]).unsqueeze(1)
        for i, layer in enumerate(model.lstm):
            h, memories[i] = layer(h, memories[i])
        predicted = model._predict(h[:, 0])
        expected.append(predicted.log_likelihood(model.layout.to_unit(batch.actions[:, 3 - age])))
    found = model.loss(batch, make_rng())["nll"]
    torch.testing.assert_close(found, -torch.stack(expected).mean())


def test_means_stay_in_the_action_range_and_deviations_above_their_minimum():
    model = build(min_std=0.01)
    with torch.no_grad():
        model.head.weight.mul_(100)
    predicted = model._predict(model._run_lstm(make_random_windows(30, 4).states))
    assert predicted.mean.abs().max() <= 1
    assert predicted.std.min() >= 0.01
    assert predicted.std.min() < 0.05


def test_full_noise_has_mean_and_variance_of_the_mixture():
    n, model = 4000, build()
    predicted = model._predict(model._run_lstm(make_random_windows(1, 4).states)[:, -1])
    weight = predicted.logits[0].softmax(-1).unsqueeze(-1)
    mean = (weight * predicted.mean[0]).sum(0)
    variance = (weight * (predicted.std[0].square() + (predicted.mean[0] - mean).square())).sum(0)
    states = make_random_windows(1, 4).states.expand(n, -1, -1)
    found = model.plan(states, steps=1, rng=make_batch_rng(n), sampling=LSTMGMMSampling(noise="full"))
    unit = model.layout.to_unit(found[:, 0])
    assert torch.all((unit.mean(0) - mean).abs() < 4 * (variance / n).sqrt())
    torch.testing.assert_close(unit.var(0), variance, rtol=0.1, atol=0)


def test_longer_plans_raise():
    with pytest.raises(ConfigError, match="one action, got steps 2"):
        build().plan(make_random_windows(2, 4).states, steps=2, rng=make_batch_rng(2))
