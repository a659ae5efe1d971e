"""Tests for training on CUDA: the captured step, bf16 and resuming; skipped without a GPU."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.batches import TensorRows, Transitions
from nsde_policy.core.state import measure_state
from nsde_policy.methods.base import TrainableModel
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.run_config import RunConfig
from nsde_policy.training import cuda_graph
from nsde_policy.training.fit import FitState, Recorder, fit
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.train import train_run
from tests.helpers.state_pairs import pair_states
from tests.helpers.toy_problems import make_robot_demos

pytestmark = pytest.mark.gpu
CONFIG = TrainConfig(steps=60, batch_size=256, learning_rate=3e-3, ema=0.9, log_every=20)


def make_circle() -> Transitions:
    """Make points that move around a circle by a tenth of a radian per period, with some noise."""
    generator = torch.Generator().manual_seed(0)
    angle = 2 * math.pi * torch.rand(2000, generator=generator)
    x, x_next = (torch.stack([a.cos(), a.sin()], -1) for a in (angle, angle + 0.1))
    return pair_states(torch.stack([x, x_next + 0.01 * torch.randn(2000, 2, generator=generator)]))


def build(dropout: float = 0.1) -> NeuralSDE:
    data = make_circle()
    network = NetworkConfig(width=64, depth=2, dropout=dropout)
    config = NeuralSDEConfig(history=1, noise=0.5, network=network)
    generator = torch.Generator().manual_seed(0)
    return NeuralSDE(config, measure_state(data.x, data.x_next), generator=generator).to("cuda")


def flatten_weights(model: NeuralSDE) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


def count_losses(model: TrainableModel, data: TensorRows, config: TrainConfig) -> int:
    """Fit a model, and return how often its loss was called; replays of a captured step do not call it."""
    calls, loss = [], model.loss
    model.loss = lambda *given: calls.append(1) or loss(*given)  # type: ignore[method-assign]
    fit(model, data, config, seed=1)
    return len(calls)


def test_captured_step_gives_the_weights_of_the_eager_step(monkeypatch: pytest.MonkeyPatch):
    captured, eager = build(), build()
    assert count_losses(captured, make_circle(), CONFIG) == cuda_graph.EAGER_STEPS + 1
    monkeypatch.setattr(cuda_graph, "EAGER_STEPS", CONFIG.steps)
    assert count_losses(eager, make_circle(), CONFIG) == CONFIG.steps

    moved = (flatten_weights(captured) - flatten_weights(build())).abs().max()
    assert moved > 0.01
    torch.testing.assert_close(
        flatten_weights(captured), flatten_weights(eager), atol=1e-3 * float(moved), rtol=1e-3
    )


def test_training_in_bf16_lowers_the_loss_and_stays_finite():
    config = dataclasses.replace(CONFIG, steps=300, precision="bf16")
    half, full = build(), build()
    history = fit(half, make_circle(), config, seed=1)
    assert all(math.isfinite(loss) for losses in history for loss in losses.values())
    assert history[-1]["flow"] < 0.5 * history[0]["flow"]
    assert all(parameter.dtype == torch.float32 for parameter in half.parameters())
    fit(full, make_circle(), dataclasses.replace(config, precision="tf32"), seed=1)
    assert not torch.equal(flatten_weights(half), flatten_weights(full))


def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_one():
    whole = build()
    fit(whole, make_circle(), CONFIG, seed=1)

    states: list[dict[str, torch.Tensor]] = []

    class Saver(Recorder):
        def after_step(self, state: FitState) -> bool:
            states.extend([state.state()] if state.step == 30 else [])
            return False

    fit(build(), make_circle(), CONFIG, seed=1, recorder=Saver())

    class Resumer(Recorder):
        def load_checkpoint(self) -> dict[str, torch.Tensor]:
            return states[0]

    resumed = build()
    fit(resumed, make_circle(), CONFIG, seed=1, recorder=Resumer())
    torch.testing.assert_close(flatten_weights(resumed), flatten_weights(whole), atol=1e-3, rtol=1e-2)


def test_validation_does_not_disturb_the_captured_step(tmp_path: Path):
    demos = make_robot_demos()
    model = NeuralSDEConfig(network=NetworkConfig(width=64, depth=2))
    config = RunConfig(model=model, train=dataclasses.replace(CONFIG, batch_size=32))
    options = TrainOptions(seed=3, device="cuda", validation=0.2)
    run = train_run(demos, config, tmp_path / "run", options=options)
    record = run.read_record()
    rest = demos.select([i for i in range(len(demos)) if i not in record.demos.held_out])
    alone = train_run(rest, config, tmp_path / "alone", options=TrainOptions(seed=3, device="cuda"))
    ours, expected = run.read_weights(), alone.read_weights()
    for name, weights in expected.items():
        torch.testing.assert_close(ours[name], weights, rtol=1e-3, atol=1e-4)
    losses = [metrics["validation_flow"] for metrics in run.read_metrics()]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
