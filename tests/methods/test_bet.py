"""Tests for nsde_policy/methods/bet/model.py and network.py."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from nsde_policy.config import Sampling, TrainConfig
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.bet import (
    PRESETS,
    BehaviourTransformer,
    BehaviourTransformerConfig,
    BehaviourTransformerSampling,
    draw_bins,
    find_bin,
    focal_loss,
    k_means,
    offset_error,
)
from nsde_policy.methods.bet.network import BlockMasks, CausalTransformer
from nsde_policy.run_config import RunConfig
from nsde_policy.training.loop import fit
from tests.helpers.method_checks import check_loaded_twice, check_plan_rows
from tests.helpers.rng import make_draws, make_rng
from tests.helpers.toy_problems import UNIT_LINE, WITH_ANGLE, make_random_windows, make_signed_steps

SMALL = {"bins": 5, "width": 12, "depth": 2, "heads": 3}


def build(**changes: Any) -> BehaviourTransformer:
    model = BehaviourTransformer(
        BehaviourTransformerConfig(**{**SMALL, **changes}), WITH_ANGLE, generator=make_rng()
    )
    model.prepare(make_random_windows(200, 3))
    return model.eval()


def enlarge_outputs(model: BehaviourTransformer) -> BehaviourTransformer:
    """Give the output layer larger weights, so that outputs depend on the input."""
    with torch.no_grad():
        model.transformer.output.weight.normal_(std=0.3, generator=make_rng(4))
    return model


def make_batch() -> Windows:
    return make_random_windows(30, 3)


CORNERS = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])


def test_k_means_finds_separate_clusters_from_nearly_every_start():
    def finds_all_clusters(seed: int) -> bool:
        points = CORNERS.repeat(40, 1) + 0.02 * torch.randn(200, 2, generator=make_rng(seed))
        means = points.reshape(40, 5, 2).mean(0)
        distance, match = torch.cdist(means, k_means(points, 5, generator=make_rng(seed + 1))).min(dim=1)
        return sorted(match.tolist()) == [0, 1, 2, 3, 4] and bool(distance.max() < 1e-5)

    assert sum(finds_all_clusters(seed) for seed in range(40)) >= 39


def test_k_means_converges_to_the_means_of_the_nearest_points():
    points = torch.rand(500, 2, generator=make_rng())
    found = k_means(points, 16, generator=make_rng(1))
    chosen = find_bin(points, found)
    assert set(chosen.tolist()) == set(range(16))
    for i in range(16):
        torch.testing.assert_close(found[i], points[chosen == i].mean(0))


def test_k_means_of_one_bin_is_the_mean_and_of_as_many_bins_as_points_the_points():
    points = torch.rand(20, 3, generator=make_rng())
    torch.testing.assert_close(k_means(points, 1, generator=make_rng())[0], points.mean(0))
    found = k_means(points, 20, generator=make_rng())
    torch.testing.assert_close(torch.cdist(points, found).amin(1), torch.zeros(20))


def test_k_means_moves_empty_bins_to_the_points_farthest_from_their_centre(monkeypatch: Any):
    """All centres start at one point, so that all but one bin are empty after the first round."""
    monkeypatch.setattr(
        "nsde_policy.methods.bet._initialize_centres", lambda p, bins, g: p[:1].repeat(bins, 1)
    )
    points = CORNERS.repeat(40, 1) + 0.02 * torch.randn(200, 2, generator=make_rng())
    found = k_means(points, 5, generator=make_rng())
    assert torch.cdist(CORNERS, found).amin(1).max() < 0.02


@pytest.mark.parametrize("points", [torch.zeros(10, 2), CORNERS[:2], CORNERS.repeat(9, 1)])
def test_k_means_with_more_bins_than_distinct_points_keeps_every_point(points: Tensor):
    found = k_means(points, 8, generator=make_rng())
    assert found.shape == (8, 2)
    assert found.isfinite().all()
    assert torch.cdist(points, found).amin(1).max() < 1e-6


def test_bins_depend_only_on_the_seed():
    data, before = make_random_windows(300, 3), torch.random.get_rng_state()
    models = [
        BehaviourTransformer(BehaviourTransformerConfig(**SMALL), WITH_ANGLE, generator=make_rng(seed))
        for seed in (0, 0, 1)
    ]
    for model in models:
        model.prepare(data)
    first = models[0].centres.clone()
    models[0].prepare(data)
    assert torch.equal(models[0].centres, first)
    assert torch.equal(models[1].centres, first)
    assert not torch.equal(models[2].centres, first)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_bins_are_clusters_of_current_actions_in_half_ranges():
    model = build(bins=1)
    wanted = model.layout.to_unit(make_random_windows(200, 3).actions[:, 2]).mean(0)
    torch.testing.assert_close(model.centres[0], wanted)


def test_focal_loss_with_gamma_zero_is_cross_entropy():
    logits = torch.randn(6, 3, 5, generator=make_rng())
    chosen = torch.randint(5, (6, 3), generator=make_rng())
    expected = functional.cross_entropy(logits.reshape(-1, 5), chosen.reshape(-1))
    torch.testing.assert_close(focal_loss(logits, chosen, gamma=0.0), expected)


def test_focal_loss_gives_likely_bins_less_weight():
    """For p = 3/4 it is −(1/4)² log(3/4)."""
    logits, chosen = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([0])
    expected = -(1 / 16) * math.log(3 / 4)
    assert focal_loss(logits, chosen, gamma=2.0).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0])
def test_gradient_of_the_focal_loss_is_finite_for_a_certain_bin(gamma: float):
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    focal_loss(logits, torch.tensor([0]), gamma=gamma).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_offset_error_has_a_gradient_only_in_the_true_bin():
    offsets = torch.randn(4, 3, 5, 2, generator=make_rng(), requires_grad=True)
    chosen, true = torch.randint(5, (4, 3), generator=make_rng()), torch.randn(4, 3, 2, generator=make_rng(1))
    error = offset_error(offsets, chosen, true)
    by_hand = [(offsets[i, j, chosen[i, j]] - true[i, j]).square().mean() for i in range(4) for j in range(3)]
    torch.testing.assert_close(error, torch.stack(by_hand).mean())
    error.backward()
    assert offsets.grad is not None
    touched = offsets.grad.abs().sum(-1) > 0
    assert torch.equal(touched, functional.one_hot(chosen, 5).bool())


def test_loss_of_the_true_bin_and_offset_is_zero():
    """A network that returns the right bin and offset has zero loss."""
    model, batch = build(), make_batch()
    action = model.layout.to_unit(batch.actions)
    chosen = find_bin(action, model.centres)
    logits = 100 * functional.one_hot(chosen, 5).float()
    offsets = (action - model.centres[chosen]).unsqueeze(-2).expand(-1, -1, 5, -1)
    model._predict = lambda *_: (logits, offsets)  # type: ignore[assignment, method-assign]
    parts = model.loss(batch, make_rng()).parts
    assert parts["focal"].item() == pytest.approx(0, abs=1e-6)
    assert parts["offset"].item() == pytest.approx(0, abs=1e-6)


def test_bins_are_sampled_by_their_probabilities():
    n, logits = 20_000, torch.tensor([1.0, -torch.inf, 0.0, 2.0, -1.0])
    uniform = torch.rand(n, 1, generator=make_rng())
    for temperature in (0.5, 1.0, 3.0):
        drawn = draw_bins(logits.expand(n, -1), uniform, temperature=temperature)
        p = (logits / temperature).softmax(-1)
        share = torch.bincount(drawn, minlength=5) / n
        assert torch.all((share - p).abs() <= 4 * (p * (1 - p) / n).sqrt())
    assert draw_bins(logits.expand(n, -1), uniform, temperature=0.0).unique().tolist() == [3]


def test_plan_is_a_sampled_centre_plus_its_offset():
    model, states = enlarge_outputs(build()), make_random_windows(1, 3).states.expand(300, -1, -1)
    logits, offsets = (output[0, -1] for output in model._predict(states[:1]))
    possible = model.layout.from_unit(model.centres + offsets)
    plan = model.plan(states, steps=1, draws=make_draws(300))[:, 0]
    distance, chosen = torch.cdist(plan, possible).min(dim=1)
    assert distance.max() < 1e-3
    share = torch.bincount(chosen, minlength=5) / 300
    p = logits.softmax(-1)
    assert torch.all((share - p).abs() < 4 * (p * (1 - p) / 300).sqrt())
    likeliest = model.plan(states, steps=1, draws=make_draws(300), sampling=BehaviourTransformerSampling(0.0))
    torch.testing.assert_close(likeliest[:, 0], possible[logits.argmax()].expand(300, -1))


def test_transformer_is_causal_and_depends_on_the_order():
    net = CausalTransformer(3, 4, length=5, width=12, depth=2, heads=3, dropout=0.0, generator=make_rng())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=0.3, generator=make_rng(1))
    tokens = torch.randn(6, 5, 3, generator=make_rng(2))
    output = net(tokens)
    for position in range(5):
        moved = tokens.clone()
        moved[:, position] += 1
        change = (net(moved) - output).abs().amax(dim=(0, 2))
        assert torch.all(change[:position] == 0)
        assert torch.all(change[position:] > 1e-6)
    assert (net(tokens[:, [1, 0, 2, 3, 4]]) - output)[:, -1].abs().max() > 1e-5


def test_attention_equals_that_of_pytorch():
    net = CausalTransformer(3, 4, length=5, width=12, depth=1, heads=3, dropout=0.0, generator=make_rng())
    block, h = net.blocks[0], torch.randn(6, 5, 12, generator=make_rng(2))
    q, k, v = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in block.query_key_value(h).chunk(3, -1))
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = block.attended(attended.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(block._attend(h, net.causal, None), expected)


def test_output_depends_on_every_observation_and_no_action():
    model, states = enlarge_outputs(build()), make_batch().states
    now = model.transformer(model.layout.obs_features(states.flip(1)))[:, -1]
    torch.testing.assert_close(torch.cat([a[:, -1].flatten(1) for a in model._predict(states)], -1), now)
    acted = states.clone()
    acted[..., 2:] += 1
    assert torch.equal(model._predict(acted)[0], model._predict(states)[0])
    for age in range(3):
        moved = states.clone()
        moved[:, age, 0] += 5
        assert (model._predict(moved)[0] - model._predict(states)[0])[:, -1].abs().max() > 1e-5


@pytest.mark.parametrize(("dropout", "noise"), [(0.0, 0.0), (0.3, 0.5)])
def test_loss_has_finite_gradients_and_needs_no_host_synchronisation(dropout: float, noise: float):
    model = build(dropout=dropout, noise=noise).train()
    (stage,) = model.stages()
    parts = model.loss(make_batch(), make_rng())
    assert set(parts.parts) == set(stage.losses)
    parts.total(stage.losses).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(make_batch(), make_rng()).total(stage.losses).shape == ()


def test_loss_draws_only_from_its_generator():
    model, before = build().train(), torch.random.get_rng_state()
    one, two, other = (model.loss(make_batch(), make_rng(s)).parts["focal"] for s in (5, 5, 6))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(ConfigError, match="needs a random generator"):
        model.transformer(torch.zeros(1, 3, 3))


def test_dropout_applies_to_attention_and_both_residual_branches():
    net = CausalTransformer(3, 4, length=5, width=12, depth=1, heads=3, dropout=0.0, generator=make_rng())
    block, h = net.blocks[0], torch.randn(6, 5, 12, generator=make_rng(2))
    looks, adds = torch.ones(6, 3, 5, 5), torch.ones(6, 5, 12)
    torch.testing.assert_close(
        block(h, net.causal, BlockMasks(looks, adds, adds)), block(h, net.causal, None)
    )
    assert torch.equal(block(h, net.causal, BlockMasks(looks, 0 * adds, 0 * adds)), h)
    deaf, silent = BlockMasks(0 * looks, adds, 0 * adds), BlockMasks(looks, 0 * adds, 0 * adds)
    torch.testing.assert_close(block(h, net.causal, deaf), block(h, net.causal, silent) + block.attended.bias)


def test_rows_are_planned_independently():
    check_plan_rows(enlarge_outputs(build()), make_batch().states, steps=1, act_dim=2)


@pytest.mark.slow
def test_both_modes_are_learned_with_offsets_finer_than_the_bins():
    config = BehaviourTransformerConfig(history=2, horizon=2, bins=4, width=24, depth=2, heads=2, dropout=0.0)
    model, data = BehaviourTransformer(config, UNIT_LINE, generator=make_rng()), make_signed_steps(4000, 2)
    model.prepare(data)
    fit(model, data, TrainConfig(steps=250, batch_size=128, learning_rate=5e-3, ema=0.98), seed=0)
    states = data.states[:500]
    sharp = BehaviourTransformerSampling(temperature=0.5)
    action = model.plan(states, steps=1, draws=make_draws(500), sampling=sharp)[:, 0, 0]
    wanted = 0.2 + 0.6 * states[:, 0, 0]
    assert ((action.abs() - wanted).abs() < 0.1).float().mean() > 0.95
    assert (action.abs() < 0.1).float().mean() < 0.01
    assert 0.4 < (action > 0).float().mean() < 0.6


def test_weights_and_bins_are_saved_and_loaded(tmp_path: Path):
    config = BehaviourTransformerConfig(**SMALL, sampling=BehaviourTransformerSampling(temperature=0.7))
    record, model = check_loaded_twice(config, tmp_path)
    fresh = BehaviourTransformer(config, record.layout, generator=make_rng(1))
    assert not torch.equal(model.centres, fresh.centres)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 4}, "need horizon == history"),
        ({"bins": 0}, "bins >= 1"),
        ({"heads": 7}, "multiple of heads"),
        ({"dropout": 1.0}, "dropout < 1"),
        ({"noise": -1.0}, "noise >= 0"),
        ({"focal_gamma": 0.5}, "focal_gamma = 0 or >= 1"),
        ({"focal_gamma": math.inf}, "focal_gamma"),
        ({"offset_scale": 0.0}, "offset_scale > 0"),
    ],
)
def test_invalid_settings_raise(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        BehaviourTransformerConfig(**changes)


def test_invalid_sampling_and_longer_plans_raise():
    model, states = build(), make_random_windows(2, 3).states
    with pytest.raises(ConfigError, match="BehaviourTransformerSampling, got Sampling"):
        model.plan(states, steps=1, draws=make_draws(2), sampling=Sampling())
    with pytest.raises(ConfigError, match="one action, got steps 2"):
        model.plan(states, steps=2, draws=make_draws(2))
    with pytest.raises(ConfigError, match="temperature >= 0"):
        BehaviourTransformerSampling(temperature=-1.0)


def test_presets_plan_one_action():
    for preset in PRESETS.values():
        RunConfig(model=preset.model, train=preset.train, chunk=preset.chunk)
        assert preset.model.longest_chunk == preset.chunk == 1
    assert build().network_calls(1) == 1
