"""Tests that methods learn demonstrations with two modes: all of them keep both, regression averages them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nsde_policy.config import NetworkConfig, TrainConfig, WindowConfig
from nsde_policy.methods.baselines.bet import BehaviourTransformerConfig
from nsde_policy.methods.baselines.diffusion import DiffusionConfig, DiffusionSampling, UNetConfig
from nsde_policy.methods.baselines.flow import StreamingFlowConfig, StreamingFlowSampling
from nsde_policy.methods.baselines.ibc import ImplicitBCConfig, ImplicitBCSampling
from nsde_policy.methods.baselines.l1_flow import L1FlowConfig
from nsde_policy.methods.baselines.lstm_gmm import LSTMGMMConfig
from nsde_policy.methods.baselines.regression import RegressionConfig
from nsde_policy.methods.registry import get_method
from nsde_policy.training.fit import fit
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import LINE, make_states, make_two_modes

pytestmark = pytest.mark.slow

FIT = TrainConfig(steps=250, batch_size=64, learning_rate=5e-3, ema=0.98)
NETWORK = NetworkConfig(width=32, depth=2, dropout=0.0)
DDIM = DiffusionSampling("ddim", 10)
IBC = ImplicitBCConfig(width=32, depth=3, negatives=32, dropout=0.0, sampling=ImplicitBCSampling(samples=256))


def plan(config: WindowConfig, train: TrainConfig = FIT) -> Tensor:
    """Train on actions that are all 10 or all −10, then plan 200 times from one state, (200, steps)."""
    model = get_method(config.method).model_class()(config, LINE, generator=make_rng())
    data = make_two_modes(2000, config)
    model.prepare(data)
    fit(model, data, train, seed=0)
    states = make_states(torch.zeros(200), config.history)
    found: Tensor = model.plan(states, steps=config.longest_chunk, rng=make_batch_rng(200))
    return found[..., 0]


def check_modes(plans: Tensor, share: float = 0.95) -> None:
    """Assert that both modes are equally frequent, and that at least a share of the plans ends in one."""
    assert 0.3 < (plans[:, -1] > 0).float().mean().item() < 0.7
    assert ((plans[:, -1].abs() - 10).abs() < 5).float().mean().item() > share


@pytest.mark.parametrize(
    "config",
    [
        IBC,
        LSTMGMMConfig(history=2, horizon=2, hidden=16),
        BehaviourTransformerConfig(history=2, horizon=2, bins=4, width=24, depth=2, heads=2, dropout=0.0),
        L1FlowConfig(history=1, horizon=2, network=NETWORK),
    ],
    ids=lambda config: config.method,
)
def test_both_modes_are_kept(config: WindowConfig):
    check_modes(plan(config))


def test_diffusion_keeps_the_mode_of_a_chunk():
    """Independent signs would agree in one chunk of two actions in two."""
    config = DiffusionConfig(history=1, horizon=2, unet=UNetConfig((16, 16), 3, 16), sampling=DDIM)
    plans = plan(config, replace(FIT, steps=150, batch_size=32))
    check_modes(plans, share=0.75)
    assert (plans.sign() == plans[:, :1].sign()).all(dim=1).float().mean().item() > 0.7


def test_random_starts_of_a_flow_reach_both_modes():
    sampling = StreamingFlowSampling(substeps=4, start=1.0)
    config = StreamingFlowConfig(horizon=6, noise=0.3, network=NETWORK, sampling=sampling)
    check_modes(plan(config, replace(FIT, steps=300, batch_size=128)), share=0.75)


def test_regression_averages_the_modes():
    assert plan(RegressionConfig(network=NETWORK)).abs().max() < 2
