"""Tests for nsde_policy/core/networks.py."""

import pytest
import torch
from torch import nn

from nsde_policy.core.networks import MLP, AbstractNetworks, SeparateNetworks, SharedTrunk, weights_from
from nsde_policy.errors import ConfigError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(outputs: int | None = 3, **changes: object) -> MLP:
    settings: dict[str, object] = {"width": 16, "depth": 3, "generator": seeded(), **changes}
    return MLP(5, outputs, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 2, 6])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_mlp_of_any_depth_maps_features_to_outputs(depth: int, residual: bool, layer_norm: bool):
    net = mlp(depth=depth, residual=residual, layer_norm=layer_norm)
    assert net(torch.ones(2, 7, 5)).shape == (2, 7, 3)
    assert sum(isinstance(m, nn.Linear) for m in net.modules()) == depth + 1


def test_initial_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    one, two = mlp(), mlp()
    assert torch.equal(before, torch.random.get_rng_state())
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_dropout_comes_from_the_generator_alone_and_keeps_the_mean():
    net, x = mlp(None, dropout=0.3, depth=1, layer_norm=False, activation="relu"), torch.ones(20_000, 5)
    before = torch.random.get_rng_state()
    one, two = net(x, seeded(1)), net(x, seeded(1))
    assert torch.equal(one, two)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.testing.assert_close(one.mean(0), net.eval()(x)[0], rtol=0.05, atol=1e-3)


def test_next_to_no_dropout_leaves_out_next_to_nothing():
    net, x = mlp(dropout=1e-6), torch.ones(4, 5)
    torch.testing.assert_close(net(x, seeded(1)), net.eval()(x))


def test_evaluation_mode_has_no_dropout():
    net, x = mlp(dropout=0.5).eval(), torch.ones(4, 5)
    assert torch.equal(net(x, seeded(1)), net(x, seeded(2)))


def networks(kind: str) -> AbstractNetworks:
    if kind == "shared":
        return SharedTrunk(mlp(None), 3, generator=seeded(1))
    return SeparateNetworks(mlp(), mlp(), mlp())


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_three_functions_behind_one_call(kind: str):
    out = networks(kind)(torch.ones(4, 5))
    assert [part.shape for part in out] == [(4, 3)] * 3


def test_refuses_sizes_that_make_no_network():
    with pytest.raises(ConfigError, match="depth, width >= 1"):
        mlp(depth=0)


def test_weights_come_from_the_generator_and_the_global_state_is_left_alone():
    def made(generator: torch.Generator) -> torch.Tensor:
        with weights_from(generator):
            return nn.Conv1d(2, 3, 5).weight.detach()

    before, generator = torch.get_rng_state(), seeded(3)
    first, second = made(generator), made(generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, made(seeded(3)))
    assert not torch.equal(first, second)
