"""Tests of video models: what the paper says of them, and what they learn."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nsde_policy.config import TrainConfig
from nsde_policy.errors import ConfigError
from nsde_policy.training.loop import fit
from nsde_policy.video.base import PredictedStep, VideoBatch, VideoModel, shift_state, stack_state
from nsde_policy.video.config import BackboneConfig, UnrollConfig
from nsde_policy.video.methods.neural_sde.config import NeuralSDEVideoConfig
from nsde_policy.video.methods.neural_sde.model import NeuralSDEVideo
from nsde_policy.video.pixels import RGB_CHANNELS, to_bytes, to_unit
from nsde_policy.video.presets import make_video_preset
from nsde_policy.video.registry import VIDEO_METHODS, get_video_method
from tests.helpers.rng import make_rng

SIZE = 16
TINY = BackboneConfig(width=16, depth=3, heads=2, stem=(8, 8), features=8)


def build(method: str, **changes: Any) -> VideoModel:
    found = get_video_method(method)
    config = found.config(backbone=TINY, **changes)
    return found.model_class()(config, size=SIZE, increment_std=0.5, generator=make_rng(0))


def make_batch(n: int, length: int = 8) -> VideoBatch:
    """Return windows of a bright column that moves to the right by two pixels a frame."""
    first = torch.randint(0, SIZE, (n,), generator=make_rng(1))
    frames = torch.zeros(n, length, SIZE, SIZE, 3, dtype=torch.uint8)
    for video, start in enumerate(first.tolist()):
        for k in range(length):
            frames[video, k, :, (start + 2 * k) % SIZE] = 250
    return VideoBatch(frames)


def test_frames_survive_conversion_and_the_state_is_newest_first():
    frames = torch.randint(0, 256, (2, 4, SIZE, SIZE, 3), dtype=torch.uint8, generator=make_rng(0))
    unit = to_unit(frames)
    assert torch.equal(to_bytes(unit), frames)
    state = stack_state(unit)
    assert torch.equal(state[:, :RGB_CHANNELS], unit[:, -1])
    assert torch.equal(state[:, -RGB_CHANNELS:], unit[:, 0])
    moved = shift_state(state, unit[:, 0])
    assert torch.equal(moved[:, RGB_CHANNELS:], state[:, :-RGB_CHANNELS])


@pytest.mark.parametrize("method", VIDEO_METHODS.names())
@pytest.mark.parametrize("kind", ["stem", "plain"])
def test_every_method_trains_unrolls_and_generates(method: str, kind: str):
    model = build(method)
    if kind == "plain":
        config = replace(model.config, backbone=replace(TINY, kind="plain"))
        model = type(model)(config, size=SIZE, increment_std=0.5, generator=make_rng(0))
    batch = make_batch(3)
    for unrolled in (None, UnrollConfig(frames=3, calls=2), UnrollConfig(frames=3, gradients=False)):
        model.unrolled = unrolled
        (stage,) = model.stages()
        total = model.loss(batch, make_rng(0)).total(stage.losses)
        total.backward()
        assert torch.isfinite(total)
    assert all(parameter.grad is not None for parameter in model.outputs.parameters())
    found = model.generate(batch.frames[:, :4], steps=4, calls=2, generator=make_rng(0))
    assert found.shape == (3, 4, 3, SIZE, SIZE)
    assert found.abs().max() <= 1


def test_one_convolution_draws_the_same_as_the_heads():
    model = NeuralSDEVideo(
        NeuralSDEVideoConfig(backbone=TINY), size=SIZE, increment_std=0.5, generator=make_rng(0)
    )
    for head in model.outputs.values():
        torch.nn.init.normal_(head.weight, std=0.1, generator=make_rng(1))
        torch.nn.init.normal_(head.bias, generator=make_rng(2))
    state = torch.randn(2, 4 * RGB_CHANNELS, SIZE, SIZE, generator=make_rng(3))
    apart = model.run_network(state)
    log_variance, flow, score = model._run(state, with_diffusion=True)
    torch.testing.assert_close(log_variance, apart["log_variance"].clamp(-8, 8))
    torch.testing.assert_close(flow, 0.5 * apart["flow"])
    torch.testing.assert_close(score, apart["score"])


class LinearField(NeuralSDEVideo):
    """A flow that adds the same to every pixel, to check the solver."""

    def _run(self, state: Tensor, *, with_diffusion: bool) -> tuple[Tensor, Tensor, Tensor]:
        first = torch.full_like(state[:, :RGB_CHANNELS], 0.3)
        return torch.zeros_like(first), first, torch.zeros_like(first)


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_other_frames_of_the_state_move_by_subtraction(calls: int):
    model = LinearField(
        NeuralSDEVideoConfig(backbone=TINY), size=SIZE, increment_std=0.5, generator=make_rng(0)
    )
    state = stack_state(to_unit(make_batch(2).frames[:, :4]))
    states = model.substeps(state, calls, make_rng(0), 1.0, 0.0)
    assert len(states) == calls
    expected = shift_state(state, state[:, :RGB_CHANNELS] + 0.3)
    assert torch.allclose(states[-1], expected, atol=1e-5)


def test_diffusion_has_the_learned_size_at_any_number_of_calls():
    model = LinearField(
        NeuralSDEVideoConfig(backbone=TINY), size=SIZE, increment_std=0.5, generator=make_rng(0)
    )
    state = torch.zeros(64, 12, SIZE, SIZE)
    for calls in (1, 4):
        found = model.predict(state, calls=calls, generator=make_rng(calls), diffusion_scale=1.0)
        assert found.std() == pytest.approx(0.5, rel=0.02)
        assert found.mean() == pytest.approx(0.3, abs=0.01)


def test_log_loss_is_the_reduced_loss_of_the_paper():
    model = build("neural_sde", flow_loss="log", delta=0.01)
    assert isinstance(model, NeuralSDEVideo)
    error = torch.tensor([0.0, 0.1, 1.0])
    expected = 0.5 * np.log(error.numpy() ** 2 + 0.01).mean()
    assert model._flow_loss(error, torch.zeros(3)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("flow_loss", ["square", "log"])
def test_own_predictions_are_compared_with_the_next_frame(flow_loss: str):
    config = NeuralSDEVideoConfig(backbone=TINY, interpolation="uniform", flow_loss=flow_loss)  # type: ignore[arg-type]
    model = LinearField(config, size=SIZE, increment_std=0.5, generator=make_rng(0))
    state, clean = (torch.randn(8, c, SIZE, SIZE, generator=make_rng(c)) for c in (12, RGB_CHANNELS))
    right = state[:, :RGB_CHANNELS] + 0.3  # where the flow of `LinearField` leads
    step = PredictedStep(state, clean, right, is_first=False)
    losses, predicted = model.step_losses(step, make_rng(0))
    lowest = 0.5 * np.log(model.config.delta) if flow_loss == "log" else 0.0
    assert losses["flow"].item() == pytest.approx(lowest, abs=1e-5)
    assert losses["score"] == 0
    assert predicted is not None
    torch.testing.assert_close(predicted, right)


def test_second_phase_takes_the_calls_and_the_optimiser_of_the_preset():
    config = make_video_preset("fast", "flow_matching")
    assert config.unroll.calls == config.model.calls == 2
    assert config.unroll.train.precision == config.train.precision


def test_denoiser_without_noise_is_refused():
    with pytest.raises(ConfigError, match="context_noise"):
        NeuralSDEVideoConfig(context_noise=0.0)


@pytest.mark.parametrize("method", VIDEO_METHODS.names())
def test_motion_is_learned(method: str):
    batch = make_batch(16)
    model = build(method, context_noise=0.05)
    config = TrainConfig(steps=60, batch_size=8, learning_rate=5e-3, ema=0.9, weight_decay=0.0)
    record = fit(model, batch, replace(config, log_every=59), seed=0)
    losses = [sum(values) for values in zip(*record.losses.values(), strict=True)]
    assert losses[-1] < 0.6 * losses[0]
