"""Tests for nsde_policy/methods/lstm_gmm.py."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import Sampling, TrainConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.lstm_gmm import LOW_NOISE, LSTMGMM, PRESETS, LSTMGMMConfig, LSTMGMMSampling, Mixture
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import fingerprint
from nsde_policy.training.loop import fit
from tests.helpers.method_checks import check_loaded_twice, check_plan_rows
from tests.helpers.rng import make_draws, make_rng
from tests.helpers.toy_problems import UNIT_LINE, WITH_ANGLE, make_random_windows, make_signed_steps

SMALL = {"history": 4, "horizon": 4, "hidden": 12}


def build(layout: StateSpec = WITH_ANGLE, **changes: Any) -> LSTMGMM:
    return LSTMGMM(LSTMGMMConfig(**{**SMALL, **changes}), layout, generator=make_rng()).eval()


def make_batch() -> Windows:
    return make_random_windows(30, 4)


def make_mixture(modes: int, dim: int, *shape: int, seed: int = 0) -> Mixture:
    g = make_rng(seed)
    return Mixture(
        torch.randn(*shape, modes, generator=g),
        torch.randn(*shape, modes, dim, generator=g),
        torch.rand(*shape, modes, dim, generator=g) + 0.05,
    )


@settings(max_examples=25, deadline=None)
@given(modes=st.integers(1, 6), dim=st.integers(1, 4), seed=st.integers(0, 1000))
def test_likelihood_equals_that_of_a_mixture_of_independent_normals(modes: int, dim: int, seed: int):
    ours, x = make_mixture(modes, dim, 7, 3, seed=seed), torch.randn(7, 3, dim, generator=make_rng(seed + 1))
    theirs = distributions.MixtureSameFamily(
        distributions.Categorical(logits=ours.logits),
        distributions.Independent(distributions.Normal(ours.mean, ours.std), 1),
    )
    torch.testing.assert_close(ours.log_likelihood(x), theirs.log_prob(x), rtol=1e-4, atol=1e-4)


def test_density_integrates_to_one_and_has_the_weighted_mean():
    one = Mixture(*(part.double() for part in make_mixture(5, 1)))
    x = torch.linspace(-15, 15, 60_001, dtype=torch.float64)
    density = one.log_likelihood(x.unsqueeze(-1)).exp()
    assert torch.trapezoid(density, x).item() == pytest.approx(1, abs=1e-8)
    mean = (one.logits.softmax(-1) * one.mean.squeeze(-1)).sum()
    assert torch.trapezoid(x * density, x).item() == pytest.approx(mean.item(), abs=1e-8)


def test_loss_is_the_mean_negative_log_likelihood_of_all_steps():
    """Compare with the LSTM applied to one state at a time, oldest first."""
    model, batch = build(), make_batch()
    memories: list[Any] = [None] * len(model.lstm)
    expected = []
    for age in (3, 2, 1, 0):
        h = model.layout.obs_features(batch.states[:, age]).unsqueeze(1)
        for i, layer in enumerate(model.lstm):
            h, memories[i] = layer(h, memories[i])
        predicted = model._predict(h[:, 0])
        expected.append(predicted.log_likelihood(model.layout.to_unit(batch.actions[:, 3 - age])))
    found = model.loss(batch, make_rng()).parts["nll"]
    torch.testing.assert_close(found, -torch.stack(expected).mean())


def test_means_stay_in_the_action_range_and_deviations_above_their_minimum():
    model = build(min_std=0.01)
    with torch.no_grad():
        model.head.weight.mul_(100)
    predicted = model._predict(model._run_lstm(make_batch().states))
    assert predicted.mean.abs().max() <= 1
    assert predicted.std.min() >= 0.01
    assert predicted.std.min() < 0.05


def test_low_noise_samples_the_means_by_their_weights():
    n, model = 4000, build()
    predicted = model._predict(model._run_lstm(make_random_windows(1, 4).states)[:, -1])
    found = model.plan(make_random_windows(1, 4).states.expand(n, -1, -1), steps=1, draws=make_draws(n))[:, 0]
    distance, nearest = torch.cdist(model.layout.to_unit(found), predicted.mean[0]).min(dim=1)
    assert distance.max() < 6 * LOW_NOISE
    share = torch.bincount(nearest, minlength=5) / n
    weight = predicted.logits[0].softmax(-1)
    assert torch.all((share - weight).abs() < 4 * (weight * (1 - weight) / n).sqrt())


def test_full_noise_has_mean_and_variance_of_the_mixture():
    n, model = 4000, build()
    predicted = model._predict(model._run_lstm(make_random_windows(1, 4).states)[:, -1])
    weight = predicted.logits[0].softmax(-1).unsqueeze(-1)
    mean = (weight * predicted.mean[0]).sum(0)
    variance = (weight * (predicted.std[0].square() + (predicted.mean[0] - mean).square())).sum(0)
    states = make_random_windows(1, 4).states.expand(n, -1, -1)
    found = model.plan(states, steps=1, draws=make_draws(n), sampling=LSTMGMMSampling(noise="full"))
    unit = model.layout.to_unit(found[:, 0])
    assert torch.all((unit.mean(0) - mean).abs() < 4 * (variance / n).sqrt())
    torch.testing.assert_close(unit.var(0), variance, rtol=0.1, atol=0)


def test_components_with_zero_weight_are_not_sampled():
    sure = Mixture(torch.tensor([-torch.inf, 0.0, -torch.inf]), torch.arange(3.0)[:, None], torch.ones(3, 1))
    for uniform in (0.0, 0.5, 1 - 2**-24):
        assert sure.sample(torch.tensor([uniform]), torch.zeros(1)).item() == 1


def test_output_depends_on_every_state_and_their_order():
    model, states = build(), make_batch().states
    now = model._run_lstm(states)[:, -1]
    assert (model._run_lstm(states[:, [0, 3, 2, 1]])[:, -1] - now).abs().max() > 1e-4
    for age in range(4):
        moved = states.clone()
        moved[:, age, 0] += 1
        assert (model._run_lstm(moved)[:, -1] - now).abs().max() > 1e-5


def test_output_depends_on_no_action_and_no_later_state():
    model, states = build(), make_batch().states
    acted = states.clone()
    acted[..., 2:] += 1
    assert torch.equal(model._run_lstm(acted), model._run_lstm(states))
    later = states.clone()
    later[:, 0, 0] += 1
    torch.testing.assert_close(model._run_lstm(later)[:, :-1], model._run_lstm(states)[:, :-1])


def test_noise_on_states_changes_the_loss_but_not_plans():
    (clear, plan), (_, same), (once, _), (twice, _) = (
        (
            model.loss(make_batch(), make_rng(seed)).parts["nll"],
            model.plan(make_batch().states, steps=1, draws=make_draws(30)),
        )
        for model, seed in ((build(), 0), (build(noise=0.5), 0), (build(noise=0.5), 1), (build(noise=0.5), 2))
    )
    assert torch.equal(plan, same)
    assert len({clear.item(), once.item(), twice.item()}) == 3


@pytest.mark.parametrize(("dropout", "noise"), [(0.0, 0.0), (0.3, 0.5)])
def test_loss_has_finite_gradients_and_needs_no_host_synchronisation(dropout: float, noise: float):
    model = build(dropout=dropout, noise=noise).train()
    (stage,) = model.stages()
    model.loss(make_batch(), make_rng()).total(stage.losses).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(make_batch(), make_rng()).total(stage.losses).shape == ()


def test_loss_and_weights_draw_only_from_their_generators():
    before = torch.random.get_rng_state()
    model = build(dropout=0.5).train()
    one, two, other = (model.loss(make_batch(), make_rng(s)).parts["nll"] for s in (5, 5, 6))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    same, another = (LSTMGMM(model.config, WITH_ANGLE, generator=make_rng(s)).state_dict() for s in (0, 1))
    assert fingerprint(same) == fingerprint(model.state_dict()) != fingerprint(another)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_rows_are_planned_independently():
    full = LSTMGMMSampling(noise="full")
    check_plan_rows(build(), make_batch().states, steps=1, act_dim=2, sampling=full)


@pytest.mark.slow
def test_both_modes_are_learned():
    model = LSTMGMM(LSTMGMMConfig(history=2, horizon=2, hidden=24), UNIT_LINE, generator=make_rng())
    fit(model, make_signed_steps(4000, 2), TrainConfig(steps=250, batch_size=128, learning_rate=1e-2), seed=0)
    states = make_signed_steps(500, 2).states
    action = model.plan(states, steps=1, draws=make_draws(500))[:, 0, 0]
    wanted = 0.2 + 0.6 * states[:, 0, 0]
    assert ((action.abs() - wanted).abs() < 0.1).float().mean() > 0.95
    assert 0.4 < (action > 0).float().mean() < 0.6


def test_weights_are_saved_and_loaded(tmp_path: Path):
    check_loaded_twice(LSTMGMMConfig(hidden=8, dropout=0.1, sampling=LSTMGMMSampling(noise="full")), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 9}, "horizon"),
        ({"horizon": 11}, "need horizon == history"),
        ({"hidden": 0}, "hidden >= 1"),
        ({"modes": 0}, "modes >= 1"),
        ({"min_std": 0.0}, "min_std > 0"),
        ({"min_std": math.inf}, "min_std must be finite"),
        ({"dropout": 1.0}, "dropout < 1"),
        ({"noise": -1.0}, "noise >= 0"),
    ],
)
def test_invalid_settings_raise(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        LSTMGMMConfig(**changes)


def test_invalid_sampling_and_longer_plans_raise():
    model, states = build(), make_random_windows(2, 4).states
    with pytest.raises(ConfigError, match="LSTMGMMSampling, got Sampling"):
        model.plan(states, steps=1, draws=make_draws(2), sampling=Sampling())
    with pytest.raises(ConfigError, match="one action, got steps 2"):
        model.plan(states, steps=2, draws=make_draws(2))
    noise: Any = "loud"
    with pytest.raises(ConfigError, match="one of 'low', 'full'"):
        LSTMGMMSampling(noise=noise)


def test_presets_plan_one_action_and_the_default_has_the_original_size():
    for preset in PRESETS.values():
        RunConfig(model=preset.model, train=preset.train, chunk=preset.chunk)
        assert preset.model.longest_chunk == preset.chunk == 1
    pusht = StateSpec(5, 2, (4,), (0.0,) * 7, (512.0,) * 7, (1.0,) * 7)
    model = LSTMGMM(LSTMGMMConfig(), pusht, generator=make_rng())
    assert model.network_calls(1) == 1
    assert sum(p.numel() for p in model.parameters()) == 4 * 400 * (6 + 3 * 400 + 4) + 401 * 25
