"""The interface of a method of video prediction, and what its models share."""

import abc
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from nsde_policy.core.networks import weights_from
from nsde_policy.core.targets import Interpolation, TensorRows, draw_flow_target
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.video.config import UnrollConfig, VideoModelConfig, VideoSampling
from nsde_policy.video.uvit import UViT

RGB_CHANNELS = 3
DATA_RANGE = 2.0
"""Largest minus smallest value of a pixel."""
MAX_PSNR = 60.0
"""Largest PSNR, dB: about that of a frame and the same frame rounded to bytes. Without this limit, the few
videos in which nothing moves would decide the mean."""


@dataclass(frozen=True)
class VideoBatch(TensorRows):
    """Windows of videos, oldest frame first."""

    frames: Tensor
    """Frames, (n, length, size, size, 3) uint8."""


class PredictedStep(NamedTuple):
    """One frame to be predicted in training."""

    state: Tensor
    """State with noise, or with own predictions."""
    clean: Tensor
    """Newest recorded frame."""
    target: Tensor
    """Next recorded frame."""
    unit_noise: Tensor | None
    """Noise on the newest frame, in units of `noise_std`; None for a state with own predictions."""


StepResult = tuple[dict[str, Tensor], Tensor | None]
"""Losses of one predicted frame, and the frame if a method samples it with the same single network call."""


class VideoModel(TrainableModel[VideoBatch]):
    """Predicts the next frame x_{t+1} of a video from its state X_t = (x_t, x_{t-1}, …), newest first.

    Frames are (n, 3, size, size) with values from -1 to 1; a state is (n, 3 · history, size, size). The
    constructor takes the root mean square change of a pixel over one frame as `increment_std`.
    """

    extra_frames: ClassVar[int] = 0
    """Frames of the network's input in addition to the state."""
    has_time: ClassVar[bool] = False
    """Whether the network takes a time between two frames."""
    heads: ClassVar[tuple[str, ...]] = ()
    """Outputs of the network, each with the shape of a frame."""
    losses: tuple[str, ...] = ()
    """Names of the losses that are minimised together."""
    interpolation: Interpolation = "none"
    """Whether training states lie between two recorded ones."""

    config: VideoModelConfig
    increment_std: Tensor

    def __init__(
        self, config: VideoModelConfig, *, size: int, increment_std: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.unrolled: UnrollConfig | None = None
        """Settings of unrolled training; None for the first stage."""
        with weights_from(generator):
            self.network = UViT(
                config.network,
                inputs=RGB_CHANNELS * (config.history + self.extra_frames),
                size=size,
                has_time=self.has_time,
            )
            self.outputs = nn.ModuleDict(
                {name: nn.Conv2d(self.network.channels, RGB_CHANNELS, 3, 1, 1) for name in self.heads}
            )
        for head in self.outputs.values():
            nn.init.zeros_(head.weight)  # type: ignore[arg-type]
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]
        self.register_buffer("increment_std", torch.tensor(float(increment_std)))

    @property
    def window(self) -> int:
        """Frames of a training window."""
        return self.config.history + (self.unrolled.frames if self.unrolled else 1)

    @property
    def noise_std(self) -> float:
        """Root mean square of the noise on training states."""
        return self.config.noise / 3**0.5 if self.config.random_noise else self.config.noise

    def stages(self) -> tuple[Stage, ...]:
        """Train everything at once."""
        return (Stage(self.losses, tuple(self.parameters())),)

    def loss(self, batch: VideoBatch, generator: torch.Generator) -> LossParts:
        """Return the losses of predicting the next frame, or several frames in unrolled training."""
        frames, history = to_unit(batch.frames), self.config.history
        recorded = stack_state(frames[:, :history])
        change = differentiate_state(recorded, frames[:, history] - frames[:, history - 1])
        unit_noise = self.draw_unit_noise(recorded, generator)
        point = draw_flow_target(
            recorded.flatten(1),
            change.flatten(1),
            torch.ones((len(frames), 1), device=frames.device),
            interpolation=self.interpolation,
            noise_std=torch.full((), self.noise_std, device=frames.device),
            unit_noise=unit_noise.flatten(1),
            generator=generator,
        ).x.view_as(recorded)
        first = PredictedStep(point, frames[:, history - 1], frames[:, history], unit_noise[:, :RGB_CHANNELS])
        losses, predicted = self.step_losses(first, generator)
        parts = [losses]
        state = recorded + self.noise_std * unit_noise
        unroll = self.unrolled or UnrollConfig(frames=1)
        for now in range(history, history + unroll.frames - 1):
            state = shift_state(state, self._predict_own(state, predicted, unroll, generator))
            step = PredictedStep(state, frames[:, now], frames[:, now + 1], None)
            losses, predicted = self.step_losses(step, generator)
            parts.append(losses)
        return LossParts({name: torch.stack([part[name] for part in parts]).mean() for name in losses})

    def _predict_own(
        self, state: Tensor, predicted: Tensor | None, unroll: UnrollConfig, generator: torch.Generator
    ) -> Tensor:
        """Return the next frame of unrolled training, which is `predicted` after one substep."""
        if predicted is None or unroll.substeps > 1:
            sampling = replace(self.config.sampling, substeps=unroll.substeps)
            with torch.set_grad_enabled(unroll.gradients):
                predicted = self.predict(state, sampling=sampling, generator=generator)
        return predicted if unroll.gradients else predicted.detach()

    @abc.abstractmethod
    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the losses of one predicted frame; all randomness comes from `generator`."""

    @abc.abstractmethod
    def predict(
        self, state: Tensor, *, sampling: VideoSampling | None = None, generator: torch.Generator
    ) -> Tensor:
        """Sample the next frame; `sampling` replaces `config.sampling`."""

    @torch.no_grad()
    def generate(
        self,
        frames: Tensor,
        *,
        steps: int,
        sampling: VideoSampling | None = None,
        generator: torch.Generator,
    ) -> Tensor:
        """Predict `steps` frames after the given ones, (n, history, size, size, 3) uint8 and oldest first.

        The predicted frames are (n, steps, 3, size, size) with values from -1 to 1.
        """
        state = stack_state(to_unit(frames))
        found = []
        for _ in range(steps):
            frame = self.predict(state, sampling=sampling, generator=generator).clamp(-1, 1)
            found.append(frame)
            state = shift_state(state, frame)
        return torch.stack(found, dim=1)

    def run_network(self, inputs: Tensor, time: Tensor) -> dict[str, Tensor]:
        """Return the outputs of the network at a time by name."""
        features = self.network(inputs, time)
        return {name: head(features).float() for name, head in self.outputs.items()}

    def draw_unit_noise(self, state: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise on every frame of a state, in units of `noise_std`."""
        if not self.config.noise:
            return torch.zeros_like(state)
        unit = torch.randn(state.shape, generator=generator, device=state.device)
        if not self.config.random_noise:
            return unit
        share = torch.rand((len(state), 1, 1, 1), generator=generator, device=state.device)
        return 3**0.5 * share * unit


def stack_state(frames: Tensor) -> Tensor:
    """Stack frames (n, history, 3, size, size), oldest first, as a state, newest first."""
    return frames.flip(1).flatten(1, 2)


def shift_state(state: Tensor, frame: Tensor) -> Tensor:
    """Return the state after `frame`: the new frame first, the oldest dropped."""
    return torch.cat([frame, state[:, :-RGB_CHANNELS]], dim=1)


def differentiate_state(state: Tensor, newest: Tensor) -> Tensor:
    """Return the change of a state over one frame: of the newest frame as given, of others by subtraction."""
    return torch.cat([newest, state[:, :-RGB_CHANNELS] - state[:, RGB_CHANNELS:]], dim=1)


def to_unit(frames: Tensor) -> Tensor:
    """Convert frames (..., size, size, 3) uint8 to (..., 3, size, size) with values from -1 to 1."""
    return frames.movedim(-1, -3).to(torch.float32) / 127.5 - 1


def psnr(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each frame, 10 log10(range² / mean square error), dB.

    Frames are (..., 3, height, width) with values from -1 to 1.
    """
    error = (predicted - true).square().mean(dim=(-3, -2, -1)) / DATA_RANGE**2
    return -10 * error.clamp(min=10 ** (-MAX_PSNR / 10)).log10()
