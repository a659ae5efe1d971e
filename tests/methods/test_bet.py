"""Tests for nsde_policy/methods/bet/model.py and bet_network.py."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from nsde_policy.config import Sampling, TrainConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.inference.loading import load_model
from nsde_policy.methods.base import Draws
from nsde_policy.methods.bet.model import (
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
from nsde_policy.run_directory import fingerprint
from nsde_policy.training.loop import fit
from nsde_policy.training.run import train_run
from tests.helpers.toy_problems import small_robot

LAYOUT = StateSpec(
    obs_dim=2, act_dim=2, circular=(1,), low=(0.0, -9.0, -2.0, 0.0), high=(10.0, 9.0, 2.0, 512.0),
    increment_std=(0.5, 0.1, 0.2, 3.0),
)  # fmt: skip
SMALL = {"bins": 5, "width": 12, "depth": 2, "heads": 3}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(**changes: Any) -> BehaviourTransformer:
    model = BehaviourTransformer(
        BehaviourTransformerConfig(**{**SMALL, **changes}), LAYOUT, generator=seeded()
    )
    model.prepare(rows(200))
    return model.eval()


def loud(model: BehaviourTransformer) -> BehaviourTransformer:
    """With an output layer that says more than the first weights do."""
    with torch.no_grad():
        model.transformer.output.weight.normal_(std=0.3, generator=seeded(4))
    return model


def rows(n: int = 30) -> Windows:
    scale = torch.tensor([10.0, 3.0, 4.0, 512.0])
    states = torch.rand(n, 3, 4, generator=seeded(1)) * scale - torch.tensor([0.0, 0.0, 2.0, 0.0])
    return Windows(states, states.flip(1)[..., 2:].clone())


def draws(n: int, first: int = 0) -> Draws:
    return Draws([seeded(first + i) for i in range(n)])


CORNERS = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])


def test_k_means_finds_clusters_that_lie_apart_from_nearly_every_start():
    def finds_them(seed: int) -> bool:
        points = CORNERS.repeat(40, 1) + 0.02 * torch.randn(200, 2, generator=seeded(seed))
        means = points.reshape(40, 5, 2).mean(0)
        distance, match = torch.cdist(means, k_means(points, 5, generator=seeded(seed + 1))).min(dim=1)
        return sorted(match.tolist()) == [0, 1, 2, 3, 4] and bool(distance.max() < 1e-5)

    assert sum(finds_them(seed) for seed in range(40)) >= 39


def test_k_means_ends_where_every_centre_is_the_mean_of_the_points_nearest_to_it():
    points = torch.rand(500, 2, generator=seeded())
    found = k_means(points, 16, generator=seeded(1))
    chosen = find_bin(points, found)
    assert set(chosen.tolist()) == set(range(16))
    for i in range(16):
        torch.testing.assert_close(found[i], points[chosen == i].mean(0))


def test_k_means_of_one_bin_is_the_mean_and_of_one_bin_a_point_the_points():
    points = torch.rand(20, 3, generator=seeded())
    torch.testing.assert_close(k_means(points, 1, generator=seeded())[0], points.mean(0))
    found = k_means(points, 20, generator=seeded())
    torch.testing.assert_close(torch.cdist(points, found).amin(1), torch.zeros(20))


def test_k_means_moves_empty_bins_to_the_points_that_are_farthest_from_their_own(monkeypatch: Any):
    """Begun with all centres in one place, where all but one are empty after the first round."""
    monkeypatch.setattr("nsde_policy.methods.bet.model._spread_out", lambda p, bins, g: p[:1].repeat(bins, 1))
    points = CORNERS.repeat(40, 1) + 0.02 * torch.randn(200, 2, generator=seeded())
    found = k_means(points, 5, generator=seeded())
    assert torch.cdist(CORNERS, found).amin(1).max() < 0.02


@pytest.mark.parametrize("points", [torch.zeros(10, 2), CORNERS[:2], CORNERS.repeat(9, 1)])
def test_k_means_with_more_bins_than_places_keeps_every_place(points: Tensor):
    found = k_means(points, 8, generator=seeded())
    assert found.shape == (8, 2)
    assert found.isfinite().all()
    assert torch.cdist(points, found).amin(1).max() < 1e-6


def test_bins_are_the_same_for_one_seed_and_others_for_another():
    data, before = rows(300), torch.random.get_rng_state()
    models = [
        BehaviourTransformer(BehaviourTransformerConfig(**SMALL), LAYOUT, generator=seeded(seed))
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


def test_bins_are_placed_among_the_actions_of_the_present_in_half_ranges():
    model = build(bins=1)
    wanted = model.layout.to_unit(rows(200).actions[:, 2]).mean(0)
    torch.testing.assert_close(model.centres[0], wanted)


def test_the_focal_loss_without_gamma_is_cross_entropy():
    logits = torch.randn(6, 3, 5, generator=seeded())
    chosen = torch.randint(5, (6, 3), generator=seeded())
    expected = functional.cross_entropy(logits.reshape(-1, 5), chosen.reshape(-1))
    torch.testing.assert_close(focal_loss(logits, chosen, gamma=0.0), expected)


def test_the_focal_loss_counts_what_is_likely_less():
    """p = 3/4: −(1/4)² log(3/4)."""
    logits, chosen = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([0])
    expected = -(1 / 16) * math.log(3 / 4)
    assert focal_loss(logits, chosen, gamma=2.0).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0])
def test_the_focal_loss_of_a_bin_that_is_certain_has_a_gradient(gamma: float):
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    focal_loss(logits, torch.tensor([0]), gamma=gamma).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_only_the_true_bin_learns_its_offset():
    offsets = torch.randn(4, 3, 5, 2, generator=seeded(), requires_grad=True)
    chosen, true = torch.randint(5, (4, 3), generator=seeded()), torch.randn(4, 3, 2, generator=seeded(1))
    error = offset_error(offsets, chosen, true)
    by_hand = [(offsets[i, j, chosen[i, j]] - true[i, j]).square().mean() for i in range(4) for j in range(3)]
    torch.testing.assert_close(error, torch.stack(by_hand).mean())
    error.backward()
    assert offsets.grad is not None
    touched = offsets.grad.abs().sum(-1) > 0
    assert torch.equal(touched, functional.one_hot(chosen, 5).bool())


def test_the_loss_knows_the_true_bin_and_where_in_it_the_action_lies():
    """A network that says the right bin and the right offset loses nothing."""
    model, batch = build(), rows()
    action = model.layout.to_unit(batch.actions)
    chosen = find_bin(action, model.centres)
    logits = 100 * functional.one_hot(chosen, 5).float()
    offsets = (action - model.centres[chosen]).unsqueeze(-2).expand(-1, -1, 5, -1)
    model._answer = lambda *_: (logits, offsets)  # type: ignore[assignment, method-assign]
    parts = model.loss(batch, seeded()).parts
    assert parts["focal"].item() == pytest.approx(0, abs=1e-6)
    assert parts["offset"].item() == pytest.approx(0, abs=1e-6)


def test_bins_are_drawn_by_their_probabilities():
    n, logits = 20_000, torch.tensor([1.0, -torch.inf, 0.0, 2.0, -1.0])
    uniform = torch.rand(n, 1, generator=seeded())
    for temperature in (0.5, 1.0, 3.0):
        drawn = draw_bins(logits.expand(n, -1), uniform, temperature=temperature)
        p = (logits / temperature).softmax(-1)
        share = torch.bincount(drawn, minlength=5) / n
        assert torch.all((share - p).abs() <= 4 * (p * (1 - p) / n).sqrt())
    assert draw_bins(logits.expand(n, -1), uniform, temperature=0.0).unique().tolist() == [3]


def test_a_plan_is_a_centre_and_its_offset():
    model, states = loud(build()), rows(1).states.expand(300, -1, -1)
    logits, offsets = (answer[0, -1] for answer in model._answer(states[:1]))
    possible = model.layout.from_unit(model.centres + offsets)
    plan = model.plan(states, steps=1, draws=draws(300))[:, 0]
    distance, chosen = torch.cdist(plan, possible).min(dim=1)
    assert distance.max() < 1e-3
    share = torch.bincount(chosen, minlength=5) / 300
    p = logits.softmax(-1)
    assert torch.all((share - p).abs() < 4 * (p * (1 - p) / 300).sqrt())
    likeliest = model.plan(states, steps=1, draws=draws(300), sampling=BehaviourTransformerSampling(0.0))
    torch.testing.assert_close(likeliest[:, 0], possible[logits.argmax()].expand(300, -1))


def test_a_place_knows_the_places_up_to_it_and_their_order():
    net = CausalTransformer(3, 4, length=5, width=12, depth=2, heads=3, dropout=0.0, generator=seeded())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=0.3, generator=seeded(1))
    tokens = torch.randn(6, 5, 3, generator=seeded(2))
    said = net(tokens)
    for place in range(5):
        moved = tokens.clone()
        moved[:, place] += 1
        change = (net(moved) - said).abs().amax(dim=(0, 2))
        assert torch.all(change[:place] == 0)
        assert torch.all(change[place:] > 1e-6)
    assert (net(tokens[:, [1, 0, 2, 3, 4]]) - said)[:, -1].abs().max() > 1e-5


def test_attention_is_that_of_pytorch():
    net = CausalTransformer(3, 4, length=5, width=12, depth=1, heads=3, dropout=0.0, generator=seeded())
    block, h = net.blocks[0], torch.randn(6, 5, 12, generator=seeded(2))
    q, k, v = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in block.query_key_value(h).chunk(3, -1))
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = block.attended(attended.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(block._attend(h, net.causal, None), expected)


def test_it_sees_no_action_and_every_state():
    model, states = loud(build()), rows().states
    now = model.transformer(model.layout.obs_features(states.flip(1)))[:, -1]
    torch.testing.assert_close(torch.cat([a[:, -1].flatten(1) for a in model._answer(states)], -1), now)
    acted = states.clone()
    acted[..., 2:] += 1
    assert torch.equal(model._answer(acted)[0], model._answer(states)[0])
    for age in range(3):
        moved = states.clone()
        moved[:, age, 0] += 5
        assert (model._answer(moved)[0] - model._answer(states)[0])[:, -1].abs().max() > 1e-5


@pytest.mark.parametrize(("dropout", "noise"), [(0.0, 0.0), (0.3, 0.5)])
def test_the_loss_is_finite_reaches_every_weight_and_never_waits_for_its_data(dropout: float, noise: float):
    model = build(dropout=dropout, noise=noise).train()
    (stage,) = model.stages()
    parts = model.loss(rows(), seeded())
    assert set(parts.parts) == set(stage.losses)
    parts.total(stage.losses).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(rows(), seeded()).total(stage.losses).shape == ()


def test_randomness_of_the_loss_comes_from_the_generator_alone():
    model, before = build().train(), torch.random.get_rng_state()
    one, two, other = (model.loss(rows(), seeded(s)).parts["focal"] for s in (5, 5, 6))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(ConfigError, match="needs a random generator"):
        model.transformer(torch.zeros(1, 3, 3))


def test_dropout_reaches_all_that_a_block_adds():
    net = CausalTransformer(3, 4, length=5, width=12, depth=1, heads=3, dropout=0.0, generator=seeded())
    block, h = net.blocks[0], torch.randn(6, 5, 12, generator=seeded(2))
    looks, adds = torch.ones(6, 3, 5, 5), torch.ones(6, 5, 12)
    torch.testing.assert_close(
        block(h, net.causal, BlockMasks(looks, adds, adds)), block(h, net.causal, None)
    )
    assert torch.equal(block(h, net.causal, BlockMasks(looks, 0 * adds, 0 * adds)), h)
    deaf, silent = BlockMasks(0 * looks, adds, 0 * adds), BlockMasks(looks, 0 * adds, 0 * adds)
    torch.testing.assert_close(block(h, net.causal, deaf), block(h, net.causal, silent) + block.attended.bias)


def test_one_seed_is_one_plan_and_rows_do_not_know_of_each_other():
    model, states = loud(build()), rows().states
    plan = model.plan(states, steps=1, draws=draws(30))
    assert plan.shape == (30, 1, 2)
    assert torch.equal(plan, model.plan(states, steps=1, draws=draws(30)))
    alone = model.plan(states[7:9], steps=1, draws=draws(2, first=7))
    torch.testing.assert_close(alone, plan[7:9])


def two_ways(n: int) -> Windows:
    """At every state x one goes left or right at random: a = ±(0.2 + 0.6 x) in half ranges."""
    x = torch.rand(n, 2, 1, generator=seeded(2))
    sign = torch.randint(2, (n, 2, 1), generator=seeded(3)) * 2.0 - 1
    return Windows(torch.cat([x, torch.zeros_like(x)], -1), sign * (0.2 + 0.6 * x.flip(1)))


@pytest.mark.slow
def test_learns_that_there_are_two_ways_with_offsets_finer_than_the_bins():
    layout = StateSpec(1, 1, (), (0.0, -1.0), (1.0, 1.0), (0.1, 0.1))
    config = BehaviourTransformerConfig(history=2, horizon=2, bins=4, width=24, depth=2, heads=2, dropout=0.0)
    model, data = BehaviourTransformer(config, layout, generator=seeded()), two_ways(4000)
    model.prepare(data)
    fit(model, data, TrainConfig(steps=500, batch_size=128, learning_rate=3e-3), seed=0)
    states = data.states[:500]
    sharp = BehaviourTransformerSampling(temperature=0.5)
    action = model.plan(states, steps=1, draws=draws(500), sampling=sharp)[:, 0, 0]
    wanted = 0.2 + 0.6 * states[:, 0, 0]
    assert ((action.abs() - wanted).abs() < 0.1).float().mean() > 0.95
    assert (action.abs() < 0.1).float().mean() < 0.01
    assert 0.4 < (action > 0).float().mean() < 0.6


def test_saves_and_loads_identically_bins_included(tmp_path: Path):
    model = BehaviourTransformerConfig(**SMALL, sampling=BehaviourTransformerSampling(temperature=0.7))
    config = RunConfig(model=model, train=TrainConfig(steps=20, batch_size=16, log_every=10), chunk=1)
    run = train_run(small_robot(), config, tmp_path / "run", task="none", seed=1)
    record, one = load_model(run)
    _, two = load_model(run)
    assert record.config == config
    states = torch.randn(5, 3, 5, generator=seeded())
    plan: Tensor = one.plan(states, steps=1, draws=draws(5))
    assert plan.isfinite().all()
    assert torch.equal(plan, two.plan(states, steps=1, draws=draws(5)))
    assert fingerprint(one.state_dict()) == fingerprint(run.read_weights())
    fresh = BehaviourTransformer(model, record.layout, generator=seeded(1))
    assert not torch.equal(one.centres, fresh.centres)


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
def test_bad_settings_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        BehaviourTransformerConfig(**changes)


def test_sampling_of_another_kind_and_longer_plans_are_refused():
    model, states = build(), rows(2).states
    with pytest.raises(ConfigError, match="BehaviourTransformerSampling, got Sampling"):
        model.plan(states, steps=1, draws=draws(2), sampling=Sampling())
    with pytest.raises(ConfigError, match="one action, got steps 2"):
        model.plan(states, steps=2, draws=draws(2))
    with pytest.raises(ConfigError, match="temperature >= 0"):
        BehaviourTransformerSampling(temperature=-1.0)


def test_presets_plan_one_action():
    for preset in PRESETS.values():
        RunConfig(model=preset.model, train=preset.train, chunk=preset.chunk)
        assert preset.model.longest_chunk == preset.chunk == 1
    assert build().network_calls(1) == 1
