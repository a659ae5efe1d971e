"""Tests that a known SDE is recovered from data.

The data are Euler–Maruyama steps in their stationary distribution, and the truth is f and g of these steps,
so there is no discretisation error.
"""

import pytest
import torch
from torch import Tensor

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.sde import Coefficients, euler_maruyama
from nsde_policy.core.state import measure_state
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.training.fit import fit
from tests.helpers.rng import make_rng
from tests.helpers.state_pairs import pair_states

DT = 0.2
CONFIG = NeuralSDEConfig(
    history=1,
    dt=DT,
    noise=0.0,
    denoiser=False,
    network=NetworkConfig(kind="separate", width=32, depth=2, layer_norm=False, dropout=0.0),
    sampling=SamplingConfig(alpha=0.0),
)
TRAIN = TrainConfig(steps=250, batch_size=4096, learning_rate=1e-2, weight_decay=0.0, ema=0.99)


def double_well(x: Tensor) -> Coefficients:
    """dx = (x − x³) dt + (0.5 + 0.3 / (1 + x²)) dw: two wells at ±1, noisier between them."""
    return Coefficients(x - x.pow(3), 0.5 + 0.3 / (1 + x.square()))


@pytest.mark.slow
def test_drift_and_diffusion_are_recovered_within_10_percent():
    generator = make_rng()
    start = 2 * torch.rand(2000, 1, generator=generator) - 1
    noise = torch.randn(200, 2000, 1, generator=generator)
    data = pair_states(euler_maruyama(double_well, start, dt=DT, steps=200, noise=noise)[100:], dt=DT)
    model = NeuralSDE(CONFIG, measure_state(data.x, data.x_next), generator=make_rng())
    fit(model, data, TRAIN, seed=0)
    low, high = data.x.quantile(0.025), data.x.quantile(0.975)
    central = data.x[(data.x >= low) & (data.x <= high)].unsqueeze(-1)
    with torch.no_grad():
        learned = model.sde()(central)
    for mine, truth in zip(learned, double_well(central), strict=True):
        assert (mine - truth).norm() < 0.1 * truth.norm()
