"""Tests for nsde_policy/methods/lstm_gmm.py."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributions
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import Sampling, TrainConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.inference.loading import load_model
from nsde_policy.methods.base import Draws
from nsde_policy.methods.lstm_gmm import LOW_NOISE, LSTMGMM, PRESETS, LSTMGMMConfig, LSTMGMMSampling, Mixture
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import fingerprint
from nsde_policy.training.loop import fit
from nsde_policy.training.run import train_run
from tests.helpers.toy_problems import small_robot

LAYOUT = StateSpec(
    obs_dim=2, act_dim=2, circular=(1,), low=(0.0, -9.0, -2.0, 0.0), high=(10.0, 9.0, 2.0, 512.0),
    increment_std=(0.5, 0.1, 0.2, 3.0),
)  # fmt: skip
SMALL = {"history": 4, "horizon": 4, "hidden": 12}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(layout: StateSpec = LAYOUT, **changes: Any) -> LSTMGMM:
    return LSTMGMM(LSTMGMMConfig(**{**SMALL, **changes}), layout, generator=seeded()).eval()


def rows(n: int = 30, history: int = 4) -> Windows:
    scale = torch.tensor([10.0, 3.0, 4.0, 512.0])
    states = torch.rand(n, history, 4, generator=seeded(1)) * scale - torch.tensor([0.0, 0.0, 2.0, 0.0])
    return Windows(states, states.flip(1)[..., 2:].clone())


def draws(n: int, first: int = 0) -> Draws:
    return Draws([seeded(first + i) for i in range(n)])


def mixture(modes: int, dim: int, *shape: int, seed: int = 0) -> Mixture:
    g = seeded(seed)
    return Mixture(
        torch.randn(*shape, modes, generator=g),
        torch.randn(*shape, modes, dim, generator=g),
        torch.rand(*shape, modes, dim, generator=g) + 0.05,
    )


@settings(max_examples=25, deadline=None)
@given(modes=st.integers(1, 6), dim=st.integers(1, 4), seed=st.integers(0, 1000))
def test_the_likelihood_is_that_of_a_mixture_of_independent_normals(modes: int, dim: int, seed: int):
    ours, x = mixture(modes, dim, 7, 3, seed=seed), torch.randn(7, 3, dim, generator=seeded(seed + 1))
    theirs = distributions.MixtureSameFamily(
        distributions.Categorical(logits=ours.logits),
        distributions.Independent(distributions.Normal(ours.mean, ours.std), 1),
    )
    torch.testing.assert_close(ours.log_likelihood(x), theirs.log_prob(x), rtol=1e-4, atol=1e-4)


def test_the_density_of_one_action_integrates_to_one_and_its_mean_is_the_weighted_mean():
    one = Mixture(*(part.double() for part in mixture(5, 1)))
    x = torch.linspace(-15, 15, 60_001, dtype=torch.float64)
    density = one.log_likelihood(x.unsqueeze(-1)).exp()
    assert torch.trapezoid(density, x).item() == pytest.approx(1, abs=1e-8)
    mean = (one.logits.softmax(-1) * one.mean.squeeze(-1)).sum()
    assert torch.trapezoid(x * density, x).item() == pytest.approx(mean.item(), abs=1e-8)


def test_the_loss_is_minus_the_mean_log_likelihood_at_every_step_of_the_window():
    """Against the LSTM run by hand, one state after the other, the oldest first."""
    model, batch = build(), rows()
    memories: list[Any] = [None] * len(model.lstm)
    expected = []
    for age in (3, 2, 1, 0):
        h = model.layout.obs_features(batch.states[:, age]).unsqueeze(1)
        for i, layer in enumerate(model.lstm):
            h, memories[i] = layer(h, memories[i])
        said = model._mixture(h[:, 0])
        expected.append(said.log_likelihood(model.layout.to_unit(batch.actions[:, 3 - age])))
    found = model.loss(batch, seeded()).parts["nll"]
    torch.testing.assert_close(found, -torch.stack(expected).mean())


def test_means_stay_within_the_range_of_the_actions_and_deviations_above_their_floor():
    model = build(min_std=0.01)
    with torch.no_grad():
        model.head.weight.mul_(100)
    said = model._mixture(model._read(rows().states))
    assert said.mean.abs().max() <= 1
    assert said.std.min() >= 0.01
    assert said.std.min() < 0.05


def test_low_noise_puts_samples_at_the_means_with_the_weights_of_the_mixture():
    n, model = 4000, build()
    said = model._mixture(model._read(rows(1).states)[:, -1])
    found = model.plan(rows(1).states.expand(n, -1, -1), steps=1, draws=draws(n))[:, 0]
    distance, nearest = torch.cdist(model.layout.to_unit(found), said.mean[0]).min(dim=1)
    assert distance.max() < 6 * LOW_NOISE
    share = torch.bincount(nearest, minlength=5) / n
    weight = said.logits[0].softmax(-1)
    assert torch.all((share - weight).abs() < 4 * (weight * (1 - weight) / n).sqrt())


def test_full_noise_has_the_variance_of_the_mixture():
    n, model = 4000, build()
    said = model._mixture(model._read(rows(1).states)[:, -1])
    weight = said.logits[0].softmax(-1).unsqueeze(-1)
    mean = (weight * said.mean[0]).sum(0)
    variance = (weight * (said.std[0].square() + (said.mean[0] - mean).square())).sum(0)
    states = rows(1).states.expand(n, -1, -1)
    found = model.plan(states, steps=1, draws=draws(n), sampling=LSTMGMMSampling(noise="full"))
    unit = model.layout.to_unit(found[:, 0])
    assert torch.all((unit.mean(0) - mean).abs() < 4 * (variance / n).sqrt())
    torch.testing.assert_close(unit.var(0), variance, rtol=0.1, atol=0)


def test_a_component_without_weight_is_never_drawn():
    sure = Mixture(torch.tensor([-torch.inf, 0.0, -torch.inf]), torch.arange(3.0)[:, None], torch.ones(3, 1))
    for uniform in (0.0, 0.5, 1 - 2**-24):
        assert sure.sample(torch.tensor([uniform]), torch.zeros(1)).item() == 1


def test_the_answer_depends_on_the_order_of_the_window_and_on_every_state_of_it():
    model, states = build(), rows().states
    now = model._read(states)[:, -1]
    assert (model._read(states[:, [0, 3, 2, 1]])[:, -1] - now).abs().max() > 1e-4
    for age in range(4):
        moved = states.clone()
        moved[:, age, 0] += 1
        assert (model._read(moved)[:, -1] - now).abs().max() > 1e-5


def test_it_sees_no_action_and_nothing_of_the_future():
    model, states = build(), rows().states
    acted = states.clone()
    acted[..., 2:] += 1
    assert torch.equal(model._read(acted), model._read(states))
    later = states.clone()
    later[:, 0, 0] += 1
    torch.testing.assert_close(model._read(later)[:, :-1], model._read(states)[:, :-1])


def test_the_blur_is_of_the_loss_alone():
    (clear, plan), (_, same), (once, _), (twice, _) = (
        (model.loss(rows(), seeded(seed)).parts["nll"], model.plan(rows().states, steps=1, draws=draws(30)))
        for model, seed in ((build(), 0), (build(noise=0.5), 0), (build(noise=0.5), 1), (build(noise=0.5), 2))
    )
    assert torch.equal(plan, same)
    assert len({clear.item(), once.item(), twice.item()}) == 3


@pytest.mark.parametrize(("dropout", "noise"), [(0.0, 0.0), (0.3, 0.5)])
def test_the_loss_is_finite_reaches_every_weight_and_never_waits_for_its_data(dropout: float, noise: float):
    model = build(dropout=dropout, noise=noise).train()
    (stage,) = model.stages()
    model.loss(rows(), seeded()).total(stage.losses).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(rows(), seeded()).total(stage.losses).shape == ()


def test_randomness_comes_from_the_generators_alone():
    before = torch.random.get_rng_state()
    model = build(dropout=0.5).train()
    one, two, other = (model.loss(rows(), seeded(s)).parts["nll"] for s in (5, 5, 6))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    same, another = (LSTMGMM(model.config, LAYOUT, generator=seeded(s)).state_dict() for s in (0, 1))
    assert fingerprint(same) == fingerprint(model.state_dict()) != fingerprint(another)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_one_seed_is_one_plan_and_rows_do_not_know_of_each_other():
    model, states = build(), rows().states
    full = LSTMGMMSampling(noise="full")
    plan = model.plan(states, steps=1, draws=draws(30), sampling=full)
    assert plan.shape == (30, 1, 2)
    assert torch.equal(plan, model.plan(states, steps=1, draws=draws(30), sampling=full))
    alone = model.plan(states[7:9], steps=1, draws=draws(2, first=7), sampling=full)
    torch.testing.assert_close(alone, plan[7:9])


def two_ways(n: int, history: int) -> Windows:
    """At every state x one goes left or right at random: a = ±(0.2 + 0.6 x) in half ranges."""
    x = torch.rand(n, history, 1, generator=seeded(2))
    sign = torch.randint(2, (n, history, 1), generator=seeded(3)) * 2.0 - 1
    return Windows(torch.cat([x, torch.zeros_like(x)], -1), sign * (0.2 + 0.6 * x.flip(1)))


@pytest.mark.slow
def test_learns_that_there_are_two_ways():
    layout = StateSpec(1, 1, (), (0.0, -1.0), (1.0, 1.0), (0.1, 0.1))
    model = LSTMGMM(LSTMGMMConfig(history=2, horizon=2, hidden=24), layout, generator=seeded())
    fit(model, two_ways(4000, 2), TrainConfig(steps=500, batch_size=128, learning_rate=5e-3), seed=0)
    states = two_ways(500, 2).states
    action = model.plan(states, steps=1, draws=draws(500))[:, 0, 0]
    wanted = 0.2 + 0.6 * states[:, 0, 0]
    assert ((action.abs() - wanted).abs() < 0.1).float().mean() > 0.95
    assert 0.4 < (action > 0).float().mean() < 0.6


def test_saves_and_loads_identically(tmp_path: Path):
    model = LSTMGMMConfig(hidden=8, dropout=0.1, sampling=LSTMGMMSampling(noise="full"))
    config = RunConfig(model=model, train=TrainConfig(steps=20, batch_size=16, log_every=10), chunk=1)
    run = train_run(small_robot(), config, tmp_path / "run", task="none", seed=1)
    record, one = load_model(run)
    _, two = load_model(run)
    assert record.config == config
    states = torch.randn(5, 10, 5, generator=seeded())
    plan: Tensor = one.plan(states, steps=1, draws=draws(5))
    assert plan.isfinite().all()
    assert torch.equal(plan, two.plan(states, steps=1, draws=draws(5)))
    assert fingerprint(one.state_dict()) == fingerprint(run.read_weights())


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
def test_bad_settings_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        LSTMGMMConfig(**changes)


def test_sampling_of_another_kind_and_longer_plans_are_refused():
    model, states = build(), rows(2).states
    with pytest.raises(ConfigError, match="LSTMGMMSampling, got Sampling"):
        model.plan(states, steps=1, draws=draws(2), sampling=Sampling())
    with pytest.raises(ConfigError, match="one action, got steps 2"):
        model.plan(states, steps=2, draws=draws(2))
    noise: Any = "loud"
    with pytest.raises(ConfigError, match="one of 'low', 'full'"):
        LSTMGMMSampling(noise=noise)


def test_presets_plan_one_action_and_the_default_has_the_sizes_of_the_original():
    for preset in PRESETS.values():
        RunConfig(model=preset.model, train=preset.train, chunk=preset.chunk)
        assert preset.model.longest_chunk == preset.chunk == 1
    pusht = StateSpec(5, 2, (4,), (0.0,) * 7, (512.0,) * 7, (1.0,) * 7)
    model = LSTMGMM(LSTMGMMConfig(), pusht, generator=seeded())
    assert model.network_calls(1) == 1
    assert sum(p.numel() for p in model.parameters()) == 4 * 400 * (6 + 3 * 400 + 4) + 401 * 25
