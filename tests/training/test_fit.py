"""Tests for nsde_policy/training/fit.py and optimizer.py."""

from typing import Any

import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.batches import Transitions
from nsde_policy.core.state import measure_state
from nsde_policy.methods.base import TrainableModel
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.training.fit import FitState, fit
from nsde_policy.training.optimizer import AdamW, learning_rate
from tests.helpers.rng import make_rng
from tests.helpers.state_pairs import pair_states


def make_line() -> Transitions:
    """Make points that move right along y = 0 by one unit per period, from starts in [0, 10]."""
    first = 10 * torch.rand(2000, 1, generator=make_rng())
    x = torch.cat([first, torch.zeros_like(first)], dim=-1)
    step = torch.randn(2000, 2, generator=make_rng(1)) * torch.tensor([0.1, 0.1])
    return pair_states(torch.stack([x, x + torch.tensor([1.0, 0.0]) + step]))


def build(**changes: Any) -> NeuralSDE:
    data = make_line()
    network = NetworkConfig(width=32, depth=2, dropout=0.0)
    config = NeuralSDEConfig(**{"history": 1, "noise": 2.0, "network": network, **changes})
    return NeuralSDE(config, measure_state(data.x, data.x_next), generator=make_rng())


@pytest.mark.slow
def test_fitted_denoiser_returns_paths_to_the_data():
    model = build(network=NetworkConfig(kind="separate", width=32, depth=2, dropout=0.0))
    fit(model, make_line(), TrainConfig(steps=300, batch_size=128, learning_rate=5e-3, ema=0.98), seed=0)
    start = torch.tensor([[2.0, 0.15], [4.0, -0.15], [6.0, 0.15]])
    flow_only = SamplingConfig(alpha=0.0, diffusion=0.0)
    with_denoiser = SamplingConfig(alpha=1.0, diffusion=0.0)
    silent = torch.zeros(2, 3, 2)
    free = model.sample_paths(start, steps=2, noise=silent, sampling=flow_only)[-1]
    corrected = model.sample_paths(start, steps=2, noise=silent, sampling=with_denoiser)[-1]
    assert corrected[:, 1].abs().max() < 0.5 * free[:, 1].abs().min()
    torch.testing.assert_close(corrected[:, 0], start[:, 0] + 2, atol=0.3, rtol=0)


def test_weights_depend_only_on_the_seed_and_the_global_random_state_is_kept():
    before = torch.random.get_rng_state()
    models = [build(network=NetworkConfig(width=16, depth=2, dropout=0.2)) for _ in range(4)]
    for model, seed, ema in zip(models, (3, 3, 4, 3), (0.999, 0.999, 0.999, 0.0), strict=True):
        fit(model, make_line(), TrainConfig(steps=20, batch_size=64, ema=ema), seed=seed)
    one, same, other, not_averaged = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in models)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, not_averaged)
    assert torch.equal(before, torch.random.get_rng_state())


def test_learning_rate_rises_linearly_and_falls_to_zero_along_a_cosine():
    config = TrainConfig(steps=100, learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(step, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert rates[-1] < 0.001


def test_the_optimiser_makes_the_updates_of_torch():
    ours, theirs = (torch.nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    config, unused = TrainConfig(weight_decay=0.1, betas=(0.8, 0.95)), torch.nn.Parameter(torch.ones(2))
    optimizer = AdamW((unused, *ours.parameters()), config, torch.device("cpu"))
    settings = {"betas": config.betas, "weight_decay": config.weight_decay}
    expected = torch.optim.AdamW([unused, *theirs.parameters()], **settings)
    for step in range(5):
        optimizer.rate.fill_(0.01 * (step + 1))
        expected.param_groups[0]["lr"] = 0.01 * (step + 1)
        for model, adam in ((ours, optimizer), (theirs, expected)):
            adam.zero_grad()
            model(torch.randn(7, 5, generator=make_rng(step))).square().sum().backward()
            adam.step()
    for weight, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, other)
    assert unused.tolist() == [1, 1]


class BufferOnlyModel(TrainableModel[Transitions]):
    """Model with a buffer and without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.arange(3.0))

    def loss(self, batch: Transitions, generator: torch.Generator) -> dict[str, torch.Tensor]:
        raise AssertionError("there is nothing to train")


def test_training_without_parameters_saves_and_restores():
    one, other = (FitState(BufferOnlyModel(), TrainConfig(steps=25), seed=0) for _ in range(2))
    one.step = 25
    other.restore(one.state())
    assert other.step == 25
    assert other.average.is_finite()
    assert torch.equal(other.averaged_weights()["seen"], torch.arange(3.0))
    history = fit(model := BufferOnlyModel().train(), make_line(), TrainConfig(steps=25), seed=0)
    assert (history, model.training) == ([{}], False)
