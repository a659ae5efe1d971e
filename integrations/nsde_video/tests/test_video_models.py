"""Tests of video models: what the paper says of them, and what they learn."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nsde_policy.config import TrainConfig
from nsde_policy.core import losses
from nsde_policy.core.networks import Outputs
from nsde_policy.training.fit import fit
from nsde_video.neural_sde import DELTA, NeuralSDEVideo
from nsde_video.next_frame import (
    RGB_CHANNELS,
    PredictedStep,
    VideoModel,
    shift_state,
    stack_state,
    to_unit,
)
from nsde_video.settings import (
    PRESETS,
    NeuralSDEVideoConfig,
    NeuralSDEVideoSampling,
    UnrollConfig,
    UViTConfig,
    VideoConfig,
    VideoSampling,
)
from nsde_video.video_run import MODELS
from nsde_video.videos import VideoWindows
from tests.helpers.rng import make_rng

SIZE = 16
TINY = UViTConfig(width=16, depth=3, heads=2, stem=(8, 8), features=8)


def build(method: str, **changes: Any) -> VideoModel:
    config = type(PRESETS[method]["default"].model)(network=TINY, **changes)
    return MODELS[method](config, size=SIZE, increment_std=0.5, generator=make_rng(0))


def make_windows(n: int, length: int = 8) -> VideoWindows:
    """Return windows of a bright column that moves to the right by two pixels a frame."""
    first = torch.randint(0, SIZE, (n,), generator=make_rng(1))
    frames = torch.zeros(n, length, SIZE, SIZE, 3, dtype=torch.uint8)
    for video, start in enumerate(first.tolist()):
        for k in range(length):
            frames[video, k, :, (start + 2 * k) % SIZE] = 250
    return VideoWindows(frames.flatten(0, 1), length * torch.arange(n), length)


def test_frames_keep_their_channels_and_the_state_is_newest_first():
    frames = torch.randint(0, 256, (2, 4, SIZE, SIZE, 3), dtype=torch.uint8, generator=make_rng(0))
    unit = to_unit(frames)
    assert torch.equal(((unit.movedim(-3, -1) + 1) * 127.5).round().byte(), frames)
    state = stack_state(unit)
    assert torch.equal(state[:, :RGB_CHANNELS], unit[:, -1])
    assert torch.equal(state[:, -RGB_CHANNELS:], unit[:, 0])
    moved = shift_state(state, unit[:, 0])
    assert torch.equal(moved[:, RGB_CHANNELS:], state[:, :-RGB_CHANNELS])


@pytest.mark.parametrize("method", MODELS)
def test_every_method_trains_unrolls_and_generates(method: str):
    model, batch = build(method), make_windows(3)
    for unroll in (UnrollConfig(frames=1), UnrollConfig(frames=3), UnrollConfig(frames=3, substeps=2)):
        model.unroll = unroll
        total = torch.stack([*model.loss(batch, make_rng(0)).values()]).sum()
        total.backward()
        assert torch.isfinite(total)
    assert all(parameter.grad is not None for parameter in model.outputs.parameters())
    predicted = model.generate(batch.frames[:, :4], steps=4, generator=make_rng(0))
    assert predicted.shape == (3, 4, 3, SIZE, SIZE)
    assert predicted.abs().max() <= 1


class LinearField(NeuralSDEVideo):
    """A flow that adds 0.3 to every pixel, to check the solver."""

    def run(self, state: Tensor, *, with_diffusion: bool) -> Outputs:
        zero = torch.zeros_like(state[:, :RGB_CHANNELS])
        return Outputs(zero + 0.3 / self.increment_std, zero, zero)


def build_linear(**changes: Any) -> LinearField:
    config = NeuralSDEVideoConfig(network=TINY, **changes)
    return LinearField(config, size=SIZE, increment_std=0.5, generator=make_rng(0))


@pytest.mark.parametrize("substeps", [1, 2, 5])
def test_other_frames_of_the_state_move_by_subtraction(substeps: int):
    state = stack_state(to_unit(make_windows(2).frames[:, :4]))
    sampling = NeuralSDEVideoSampling(substeps=substeps)
    after = build_linear().solve(state, sampling=sampling, generator=make_rng(0))
    expected = shift_state(state, state[:, :RGB_CHANNELS] + 0.3)
    assert torch.allclose(after, expected, atol=1e-5)


def test_diffusion_has_the_learned_size_at_any_number_of_substeps():
    state = torch.zeros(64, 12, SIZE, SIZE)
    for substeps in (1, 4):
        sampling = NeuralSDEVideoSampling(substeps=substeps, diffusion=1.0)
        frame = build_linear().predict(state, sampling=sampling, generator=make_rng(substeps))
        assert frame.std() == pytest.approx(0.5, rel=0.02)
        assert frame.mean() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("flow_loss", ["square", "log"])
@pytest.mark.parametrize("interpolation", ["none", "uniform"])
def test_losses_are_those_of_policies(flow_loss: str, interpolation: str):
    model = build("neural_sde", flow_loss=flow_loss, interpolation=interpolation, random_noise=False)
    assert isinstance(model, NeuralSDEVideo)
    for head in model.outputs.values():
        torch.nn.init.normal_(head.weight, std=0.1, generator=make_rng(1))
    windows = make_windows(3, length=5)
    parts = model.loss(windows, make_rng(2))
    frames = to_unit(windows.frames)
    rng, state = make_rng(2), stack_state(frames[:, :4])
    noise = torch.randn(state.shape, generator=rng)
    change = torch.cat([frames[:, 4] - frames[:, 3], state[:, :-3] - state[:, 3:]], dim=1)
    tau = torch.rand((3, 1), generator=rng)[..., None, None] if interpolation == "uniform" else 0.0
    out = model.run(state + 0.2 * noise + tau * change, with_diffusion=True)
    velocity, d = (change[:, :3] / 0.5).flatten(1), 3 * SIZE * SIZE
    drift, log_variance, score = (part.flatten(1) for part in out)
    delta = DELTA if flow_loss == "log" else math.inf
    expected = {
        "flow": 2 * losses.flow_loss(drift, velocity, delta=delta) / d,
        "denoiser": 0.5 * losses.denoiser_loss(score, noise[:, :3].flatten(1)) / d,
        "diffusion": 0.1 * losses.diffusion_nll(log_variance, drift, velocity, 1.0) / d,
    }
    assert parts.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(parts[name], value)


def test_own_predictions_are_compared_with_the_next_frame():
    model = build_linear(interpolation="uniform")
    state, clean = (torch.randn(8, c, SIZE, SIZE, generator=make_rng(c)) for c in (12, RGB_CHANNELS))
    right = state[:, :RGB_CHANNELS] + 0.3  # where the flow of `LinearField` leads
    parts, predicted = model.step_losses(PredictedStep(state, clean, right, None), make_rng(0))
    assert parts["flow"].item() == pytest.approx(0, abs=1e-5)
    assert parts["denoiser"] == 0
    assert predicted is not None
    torch.testing.assert_close(predicted, right)


@pytest.mark.parametrize("method", ["flow_matching", "interpolants"])
def test_a_perfect_velocity_leads_to_the_next_frame(method: str, monkeypatch: pytest.MonkeyPatch):
    model, target = build(method), torch.rand(2, 3, SIZE, SIZE, generator=make_rng(0))
    monkeypatch.setattr(model, "velocity", lambda state, x, time: (target - x) / (1 - time[0]))
    state = torch.zeros(2, 12, SIZE, SIZE)
    for substeps in (1, 4):
        sampling = VideoSampling(substeps=substeps)
        predicted = model.predict(state, sampling=sampling, generator=make_rng(1))
        torch.testing.assert_close(predicted, target)


def test_methods_are_trained_on_equally_many_examples():
    for preset in ("default", "fast"):
        two, one = (VideoConfig.from_preset(preset, name) for name in ("neural_sde", "flow_matching"))
        second = two.unroll.frames * two.unroll.train.steps * two.unroll.train.batch_size
        assert one.train.steps * one.train.batch_size == two.train.steps * two.train.batch_size + second
        assert one.unroll.substeps == one.model.sampling.substeps == 2


@pytest.mark.parametrize("method", MODELS)
def test_motion_is_learned(method: str):
    model = build(method, noise=0.05)
    config = TrainConfig(steps=24, batch_size=4, learning_rate=0.01, ema=0.9, weight_decay=0.0, log_every=1)
    history = fit(model, make_windows(16, length=5), config, seed=0)
    assert sum(history[-1].values()) < 0.6 * sum(history[0].values())
