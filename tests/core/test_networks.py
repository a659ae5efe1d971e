"""Tests for nsde_policy/core/networks.py."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nsde_policy.config import NetworkConfig
from nsde_policy.core.networks import MLP, weights_from
from tests.helpers.rng import make_rng


def build_mlp(outputs: int | None = 3, **changes: object) -> MLP:
    config = replace(NetworkConfig(width=16, depth=3, dropout=0.0), **changes)  # type: ignore[arg-type]
    return MLP(5, outputs, config, generator=make_rng())


@pytest.mark.parametrize("depth", [1, 2, 6])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_mlp_of_any_depth_maps_features_to_outputs(depth: int, layer_norm: bool):
    net = build_mlp(depth=depth, layer_norm=layer_norm)
    assert net(torch.ones(2, 7, 5)).shape == (2, 7, 3)
    assert sum(isinstance(m, nn.Linear) for m in net.modules()) == depth + 1


def test_dropout_depends_only_on_the_generator_and_keeps_the_mean():
    net, x = build_mlp(None, dropout=0.3, depth=1, layer_norm=False, activation="relu"), torch.ones(20_000, 5)
    before = torch.random.get_rng_state()
    one, two = net(x, make_rng(1)), net(x, make_rng(1))
    assert torch.equal(one, two)
    assert torch.equal(before, torch.random.get_rng_state())
    mean = net.eval()(x, make_rng(1))[0]  # in evaluation mode, nothing is dropped
    torch.testing.assert_close(one.mean(0), mean, rtol=0.05, atol=1e-3)
    assert torch.equal(mean, net(x, make_rng(2))[0])


def test_weights_from_uses_the_generator_and_keeps_the_global_random_state():
    def build_weight(generator: torch.Generator) -> torch.Tensor:
        with weights_from(generator):
            return nn.Conv1d(2, 3, 5).weight.detach()

    before, generator = torch.get_rng_state(), make_rng(3)
    first, second = build_weight(generator), build_weight(generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, build_weight(make_rng(3)))
    assert not torch.equal(first, second)
