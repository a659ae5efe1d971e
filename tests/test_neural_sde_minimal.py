"""Tests for examples/neural_sde_minimal.py: its losses are those of `core`, bit for bit, and of README."""

import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nsde_policy.core import losses
from nsde_policy.core.sde import Coefficients, euler_maruyama
from tests.helpers.doc_pages import code_blocks

ROOT = Path(__file__).parents[1]
FILE, README = ROOT / "examples/neural_sde_minimal.py", ROOT / "README.md"


@pytest.fixture(scope="module")
def minimal() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(FILE)))


@pytest.fixture
def drawn() -> list[torch.Tensor]:
    """Return four random batches, (50, 2)."""
    return [*torch.randn(4, 50, 2, generator=torch.Generator().manual_seed(0))]


def test_losses_are_those_of_core(minimal, drawn):
    drift, velocity, log_variance, noise = drawn
    assert minimal.flow_loss(drift, velocity) == losses.flow_loss(drift, velocity, delta=math.inf)
    found = minimal.diffusion_nll(log_variance, drift, velocity, 0.1)
    assert found == losses.diffusion_nll(log_variance, drift, velocity, 0.1)
    assert minimal.denoiser_loss(drift, noise) == losses.denoiser_loss(drift, noise)


def test_the_solver_is_that_of_core(minimal, drawn):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = minimal.Networks()

    def sde(x: torch.Tensor) -> Coefficients:
        drift, log_variance, score = network(x)
        corrected = drift + minimal.ALPHA * (score / minimal.NOISE_STD)
        return Coefficients(corrected, (0.5 * log_variance).exp())

    noise = torch.randn(8, 50, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = euler_maruyama(sde, drawn[0], dt=0.025, steps=8, noise=noise)
    assert torch.equal(minimal.euler_maruyama(network, drawn[0], noise, 0.025), expected)


def test_the_loss_in_the_readme_has_the_gradient_of_these_losses(minimal, drawn):
    (snippet,) = (block for block in code_blocks(README, "python") if "randn_like" in block)
    x, x_next, *_ = drawn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = minimal.Networks()
        values = {"torch": torch, "network": network, "x": x, "x_next": x_next, "dt": 0.1, "sigma": 0.03}
        exec(snippet, values)
    found = [parameter.grad.clone() for parameter in network.parameters()]

    network.zero_grad()
    velocity, noise = (x_next - x) / 0.1, values["noise"]
    drift, log_variance, score = network(x + 0.03 * noise)
    loss = minimal.flow_loss(drift, velocity) + minimal.denoiser_loss(score, noise)
    (loss + minimal.diffusion_nll(log_variance, drift, velocity, 0.1)).backward()
    for gradient, parameter in zip(found, network.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.slow
def test_paths_take_both_branches(minimal):
    with torch.random.fork_rng(devices=[]):
        left, right = minimal.main(paths=300)
    assert min(left, right) > 50
    assert left + right > 270
