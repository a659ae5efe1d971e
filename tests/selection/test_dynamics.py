"""Tests for selection/dynamics.py: a known linear system is learned, and plans are rolled out."""

import math

import numpy as np
import pytest
import torch

from nsde_policy.config import NetworkConfig, SelectionConfig, TrainConfig
from nsde_policy.data import Demonstrations
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.selection.dynamics import DynamicsModel
from nsde_policy.training.dataset import TrainingSet, build_transitions, measure_state_spec
from nsde_policy.training.fit import fit
from tests.helpers.rng import make_rng

CONFIG = SelectionConfig(
    network=NetworkConfig(width=32, depth=2, dropout=0.0),
    train=TrainConfig(steps=200, batch_size=64, learning_rate=5e-3, ema=0.9),
)
SETTINGS = DemoConfig(first_action_from=())


def step_system(obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Move a point by a third of the action across its axes, and turn an angle by the other two thirds."""
    return obs + np.stack([action[..., 1], -action[..., 0], 2 * action[..., 0]], axis=-1) / 3


def make_demos() -> Demonstrations:
    """Make random demonstrations whose angle, column 2, often crosses ±π."""
    rng = np.random.default_rng(0)
    obs, act = rng.uniform(-1, 1, (30, 41, 3)), rng.uniform(-1, 1, (30, 41, 2))
    obs[:, 0, 2] += math.pi
    for t in range(40):
        obs[:, t + 1] = step_system(obs[:, t], act[:, t])
    obs[..., 2] %= 2 * math.pi
    ends = np.arange(41, 30 * 41 + 1, 41)
    return Demonstrations(np.float32(obs).reshape(-1, 3), np.float32(act).reshape(-1, 2), ends, angles=(2,))


def build(history: int) -> DynamicsModel:
    run = RunConfig(model=NeuralSDEConfig(history=history), demos=SETTINGS)
    spec = measure_state_spec(TrainingSet(make_demos()), run)
    return DynamicsModel(CONFIG, spec, history=history, generator=make_rng()).eval()


def make_states(history: int, rows: int = 6) -> torch.Tensor:
    states = torch.rand(rows, history, 5, generator=make_rng(1)) - 0.5
    states[..., 2] += math.pi - 0.2
    return states


@pytest.mark.parametrize("history", [1, 2])
def test_a_linear_system_is_learned(history: int):
    model, data = build(history), build_transitions(make_demos(), SETTINGS, history=history)
    fit(model, data, CONFIG.train, seed=0)
    states, actions = make_states(history), 2 * torch.rand(6, 3, 2, generator=make_rng(2)) - 1
    with torch.no_grad():
        predicted = model.predict(states, actions).numpy()
    expected = states[:, 0, :3].numpy()
    for t in range(3):
        expected = step_system(expected, actions[:, t].numpy())
        assert abs(predicted[:, t] - expected).max() < 0.1 * (t + 1)  # one step moves by 0.3 on average


@pytest.mark.parametrize("history", [1, 2, 3])
def test_several_steps_are_single_steps_from_the_predicted_states(history: int):
    model, states = build(history), make_states(history)
    actions = torch.randn(6, 4, 2, generator=make_rng(3))
    with torch.no_grad():
        at_once = model.predict(states, actions)
        for t in range(4):
            obs = model.predict(states, actions[:, t : t + 1])[:, 0]
            assert torch.equal(obs, at_once[:, t])
            states = torch.cat([torch.cat([obs, actions[:, t]], -1)[:, None], states[:, :-1]], dim=1)


def test_a_whole_turn_changes_no_prediction():
    model, states, actions = build(2), make_states(2), torch.randn(6, 4, 2, generator=make_rng(3))
    turned = states.clone()
    turned[..., 2] -= 2 * math.pi
    with torch.no_grad():
        change = model.predict(turned, actions) - model.predict(states, actions)
    assert torch.allclose(change, torch.tensor([0.0, 0.0, -2 * math.pi]).expand_as(change), atol=1e-4)
