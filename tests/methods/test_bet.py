"""Tests for nsde_policy/methods/baselines/bet.py."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from nsde_policy.methods.baselines.bet import (
    BehaviourTransformer,
    BehaviourTransformerConfig,
    CausalTransformer,
    find_bin,
    focal_loss,
    k_means,
    sample_bins,
)
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import WITH_ANGLE, make_random_windows

SMALL = {"bins": 5, "width": 12, "depth": 2, "heads": 3}


def build(**changes: Any) -> BehaviourTransformer:
    model = BehaviourTransformer(
        BehaviourTransformerConfig(**{**SMALL, **changes}), WITH_ANGLE, generator=make_rng()
    )
    model.prepare(make_random_windows(200, 3))
    return model.eval()


CORNERS = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])


def test_k_means_converges_to_the_means_of_the_nearest_points():
    points = torch.rand(500, 2, generator=make_rng())
    found = k_means(points, 16, generator=make_rng(1))
    chosen = find_bin(points, found)
    assert set(chosen.tolist()) == set(range(16))
    for i in range(16):
        torch.testing.assert_close(found[i], points[chosen == i].mean(0))


@pytest.mark.parametrize("points", [torch.zeros(10, 2), CORNERS[:2], CORNERS.repeat(9, 1)])
def test_k_means_with_more_bins_than_distinct_points_keeps_every_point(points: Tensor):
    found = k_means(points, 8, generator=make_rng())
    assert found.shape == (8, 2)
    assert found.isfinite().all()
    assert torch.cdist(points, found).amin(1).max() < 1e-6


def test_focal_loss_gives_likely_bins_less_weight():
    """For p = 3/4 it is −(1/4)^γ log(3/4)."""
    logits, chosen = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([0])
    for gamma in (0.0, 1.0, 2.0):
        expected = -(0.25**gamma) * math.log(3 / 4)
        assert focal_loss(logits, chosen, gamma=gamma).item() == pytest.approx(expected, rel=1e-5)


def test_bins_are_clusters_of_current_actions_and_the_loss_of_the_true_bin_and_offset_is_zero():
    model, batch = build(), make_random_windows(200, 3)
    now = model.layout.to_unit(batch.actions[:, 2])
    assert torch.equal(model.centres, k_means(now, 5, generator=make_rng(model._bin_seed)))
    action = model.layout.to_unit(batch.actions)
    chosen = find_bin(action, model.centres)
    logits = 100 * functional.one_hot(chosen, 5).float()
    offsets = (action - model.centres[chosen]).unsqueeze(-2).expand(-1, -1, 5, -1)
    model._predict = lambda *_: (logits, offsets)  # type: ignore[assignment, method-assign]
    parts = model.loss(batch, make_rng())
    assert parts["focal"].item() == pytest.approx(0, abs=1e-6)
    assert parts["offset"].item() == pytest.approx(0, abs=1e-6)


def test_bins_are_sampled_by_their_probabilities():
    n, logits = 20_000, torch.tensor([1.0, -torch.inf, 0.0, 2.0, -1.0])
    uniform = torch.rand(n, 1, generator=make_rng())
    share = torch.bincount(sample_bins(logits.expand(n, -1), uniform), minlength=5) / n
    p = logits.softmax(-1)
    assert torch.all((share - p).abs() <= 4 * (p * (1 - p) / n).sqrt())


def test_plan_is_a_sampled_centre_plus_its_offset():
    model, states = build(), make_random_windows(1, 3).states.expand(300, -1, -1)
    torch.nn.init.normal_(model.transformer.output.weight, std=0.3, generator=make_rng(4))
    offsets = model._predict(states[:1])[1][0, -1]
    possible = model.layout.from_unit(model.centres + offsets)
    plan = model.plan(states, steps=1, rng=make_batch_rng(300))[:, 0]
    assert torch.cdist(plan, possible).amin(dim=1).max() < 1e-3
    assert torch.cdist(plan, possible).argmin(dim=1).unique().numel() > 1


def build_transformer(depth: int) -> CausalTransformer:
    config = BehaviourTransformerConfig(history=5, horizon=5, width=12, depth=depth, heads=3, dropout=0.0)
    return CausalTransformer(3, 4, config, generator=make_rng())


def test_transformer_is_causal_and_depends_on_the_order():
    net = build_transformer(depth=2)
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
    net = build_transformer(depth=1)
    block, h = net.blocks[0], torch.randn(6, 5, 12, generator=make_rng(2))
    q, k, v = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in block.query_key_value(h).chunk(3, -1))
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = block.attended(attended.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(block._attend(h, net.causal), expected)
