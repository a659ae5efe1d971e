"""Tests of `step_inputs` of the Neural SDE: the first layer responds to steps between states."""

from dataclasses import replace

import pytest
import torch

from nsde_policy.config import NetworkConfig
from nsde_policy.core.networks import MLP
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.run_config import RunConfig
from nsde_policy.training.dataset import measure_demonstrations
from tests.helpers.toy_problems import make_robot_demos

CONFIG = NeuralSDEConfig(history=3, network=NetworkConfig(width=256, depth=2))
LAYOUT = measure_demonstrations(make_robot_demos(), RunConfig(model=CONFIG), task="none")


def first_layer(states: torch.Tensor, **changes: object) -> torch.Tensor:
    """Return the outputs of the first layer, before anything else."""
    config = replace(CONFIG, **changes)
    model = NeuralSDE(config, LAYOUT, generator=torch.Generator().manual_seed(0))
    trunk = next(each for each in model.learned.networks.modules() if isinstance(each, MLP))
    return trunk.layers[0](model.learned.features(states.flatten(-2)))


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_first_layer_adds_a_response_to_steps_of_any_state(kind: str):
    network = replace(CONFIG.network, kind=kind)
    draw = torch.Generator().manual_seed(1)
    low, high, step = (torch.tensor(each) for each in (LAYOUT.low, LAYOUT.high, LAYOUT.increment_std))
    still = (low + (high - low) * torch.rand(64, 1, LAYOUT.dim, generator=draw)).expand(-1, 3, -1)
    moving = still - torch.arange(3.0)[:, None] * step * torch.randn(64, 1, LAYOUT.dim, generator=draw)

    def measure_change(states: torch.Tensor) -> torch.Tensor:
        return first_layer(states, step_inputs=1.0, network=network) - first_layer(states, network=network)

    assert measure_change(still).abs().max() < 1e-3
    assert 0.3 < measure_change(moving).std() < 3.0, "typical steps are inputs of size 1"
