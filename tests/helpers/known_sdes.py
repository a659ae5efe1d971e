"""SDEs with known drift and diffusion, and how well they are recovered from 200,000 transitions.

Data are chains of Euler–Maruyama steps of Δt = 0.2 in their stationary distribution, and the truth is f and g
of that chain, so there is no discretisation error.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.sde import AbstractSDE, Coefficients, euler_maruyama
from nsde_policy.core.state import measure_state
from nsde_policy.core.targets import Transitions
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.training.fit import fit
from tests.helpers.state_pairs import pair_states

DT = 0.2
OBJECTIVES: dict[str, dict[str, Any]] = {
    "joint NLL": {"objective": "joint"},
    "square + NLL": {},
    "log δ=1 + NLL": {"flow_loss": "log", "delta": 1.0},
    "log δ=1e-3 + squared (paper)": {"flow_loss": "log", "delta": 1e-3, "diffusion_loss": "squared"},
}


class OrnsteinUhlenbeck(AbstractSDE):
    """dx = −x dt + ½ dw."""

    def coefficients(self, x: Tensor) -> Coefficients:
        return Coefficients(-x, torch.full_like(x, 0.5))


class DoubleWell(AbstractSDE):
    """dx = (x − x³) dt + (0.5 + 0.3 / (1 + x²)) dw: two wells at ±1, noisier between them."""

    def coefficients(self, x: Tensor) -> Coefficients:
        return Coefficients(x - x.pow(3), 0.5 + 0.3 / (1 + x.square()))


@dataclass(frozen=True)
class Errors:
    """Relative L2 errors over the central 95 % of the data."""

    drift: float
    diffusion: float


def simulate(sde: AbstractSDE, seed: int) -> Transitions:
    """Simulate 200k stationary transitions: 2000 chains of 100 steps, after 100 discarded ones."""
    generator = torch.Generator().manual_seed(seed)
    start = 2 * torch.rand(2000, 1, generator=generator) - 1
    path = euler_maruyama(sde, start, dt=DT, steps=200, generator=generator)
    return pair_states(path[100:], dt=DT)


def select_central(x: Tensor) -> Tensor:
    low, high = x.quantile(0.025), x.quantile(0.975)
    return x[(x >= low) & (x <= high)].unsqueeze(-1)


def relative_error(found: Tensor, true: Tensor) -> float:
    return ((found - true).norm() / true.norm()).item()


def recover(sde: AbstractSDE, data: Transitions, seed: int, steps: int = 1500, **objective: Any) -> Errors:
    """Train on the data and compare with the truth."""
    config = NeuralSDEConfig(
        history=1,
        dt=DT,
        noise=0.0,
        denoiser=False,
        network=NetworkConfig(kind="separate", width=32, depth=2, layer_norm=False, dropout=0.0),
        sampling=SamplingConfig(denoiser="off"),
        **objective,
    )
    train = TrainConfig(steps=steps, batch_size=4096, learning_rate=1e-2, weight_decay=0.0, ema=0.99)
    generator = torch.Generator().manual_seed(seed)
    model = NeuralSDE(config, measure_state(data.x, data.x_next), generator=generator)
    fit(model, data, train, seed=seed)
    x = select_central(data.x)
    with torch.no_grad():
        found = model.sde().coefficients(x)
    return Errors(
        relative_error(found.drift, sde.coefficients(x).drift),
        relative_error(found.diffusion, sde.coefficients(x).diffusion),
    )


def fit_polynomial(sde: AbstractSDE, data: Transitions) -> Errors:
    """Fit polynomials of degree 5 to drift and variance by least squares."""
    powers = torch.arange(6)
    basis = data.x.double().pow(powers)
    velocity = ((data.x_next - data.x) / data.dt).double()
    drift = torch.linalg.lstsq(basis, velocity).solution
    residual = (velocity - basis @ drift).square() * DT
    variance = torch.linalg.lstsq(basis, residual).solution
    x = select_central(data.x).double()
    at = x.pow(powers)
    return Errors(
        relative_error(at @ drift, sde.coefficients(x).drift),
        relative_error((at @ variance).sqrt(), sde.coefficients(x).diffusion),
    )
