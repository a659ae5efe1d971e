"""What all models of video prediction share: the state, its noise, unrolled training and generation."""

import abc
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from nsde_policy.core.networks import weights_from
from nsde_policy.methods.base import TrainableModel

from .settings import UnrollConfig, VideoModelConfig, VideoSampling
from .uvit import UViT
from .videos import VideoWindows

RGB_CHANNELS = 3


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


class VideoModel(TrainableModel[VideoWindows]):
    """Predicts the next frame x_{t+1} of a video from its state X_t = (x_t, x_{t-1}, …), newest first.

    Frames are (n, 3, size, size) with values from -1 to 1; a state is (n, 3 · history, size, size). The
    constructor takes the root mean square change of a pixel over one frame as `increment_std`.
    """

    extra_frames: ClassVar[int] = 0
    """Frames of the network's input in addition to the state."""
    has_time: ClassVar[bool] = False
    """Whether the network takes a time between two frames."""
    heads: ClassVar[tuple[str, ...]]
    """Outputs of the network, each with the shape of a frame."""

    config: VideoModelConfig
    increment_std: Tensor

    def __init__(
        self, config: VideoModelConfig, *, size: int, increment_std: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.unroll = UnrollConfig(frames=1)
        """How many frames are predicted in training, and by how many substeps; one in the first stage."""
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
        return self.config.history + self.unroll.frames

    @property
    def noise_std(self) -> float:
        """Root mean square of the noise on training states."""
        return self.config.noise / 3**0.5 if self.config.random_noise else self.config.noise

    @property
    def is_interpolated(self) -> bool:
        """Whether training states lie between two recorded ones."""
        return False

    def loss(self, batch: VideoWindows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of predicting the next frame, or several frames in unrolled training."""
        frames, history = to_unit(batch.frames), self.config.history
        recorded, newest = stack_state(frames[:, :history]), frames[:, history - 1]
        target = frames[:, history]
        unit_noise = self.sample_unit_noise(recorded, generator)
        state = recorded + self.noise_std * unit_noise
        point = state
        if self.is_interpolated:
            tau = torch.rand((len(frames), 1, 1, 1), generator=generator, device=frames.device)
            point = state + tau * differentiate_state(recorded, target - newest)
        first = PredictedStep(point, newest, target, unit_noise[:, :RGB_CHANNELS])
        losses, predicted = self.step_losses(first, generator)
        parts = [losses]
        sampling = replace(self.config.sampling, substeps=self.unroll.substeps)
        for now in range(history, history + self.unroll.frames - 1):
            if predicted is None or self.unroll.substeps > 1:
                predicted = self.predict(state, sampling=sampling, generator=generator)
            state = shift_state(state, predicted)
            step = PredictedStep(state, frames[:, now], frames[:, now + 1], None)
            losses, predicted = self.step_losses(step, generator)
            parts.append(losses)
        return {name: torch.stack([part[name] for part in parts]).mean() for name in losses}

    @abc.abstractmethod
    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the losses of one predicted frame; all randomness comes from `generator`."""

    @abc.abstractmethod
    def predict(self, state: Tensor, *, sampling: VideoSampling, generator: torch.Generator) -> Tensor:
        """Sample the next frame."""

    @torch.no_grad()
    def generate(
        self,
        frames: Tensor,
        *,
        steps: int,
        sampling: VideoSampling | None = None,
        generator: torch.Generator,
    ) -> Tensor:
        """Predict `steps` frames after some, (n, history, size, size, 3) uint8 and oldest first.

        `sampling` replaces `config.sampling`. The predicted frames are (n, steps, 3, size, size) with values
        from -1 to 1.
        """
        state = stack_state(to_unit(frames))
        predicted = []
        for _ in range(steps):
            frame = self.predict(state, sampling=sampling or self.config.sampling, generator=generator)
            predicted.append(frame.clamp(-1, 1))
            state = shift_state(state, predicted[-1])
        return torch.stack(predicted, dim=1)

    def sample_unit_noise(self, state: Tensor, generator: torch.Generator) -> Tensor:
        """Sample the noise on every frame of a state, in units of `noise_std`."""
        if not self.config.noise:
            return torch.zeros_like(state)
        unit = torch.randn(state.shape, generator=generator, device=state.device)
        if not self.config.random_noise:
            return unit
        fraction = torch.rand((len(state), 1, 1, 1), generator=generator, device=state.device)
        return 3**0.5 * fraction * unit


def stack_state(frames: Tensor) -> Tensor:
    """Stack frames (n, history, 3, size, size), oldest first, as a state, newest first."""
    return frames.flip(1).flatten(1, 2)


def shift_state(state: Tensor, frame: Tensor) -> Tensor:
    """Return the state after `frame`: the new frame first, the oldest dropped."""
    return torch.cat([frame, state[:, :-RGB_CHANNELS]], dim=1)


def differentiate_state(state: Tensor, newest: Tensor) -> Tensor:
    """Return the change of a state over one frame: `newest` for the newest frame, differences for others."""
    return torch.cat([newest, state[:, :-RGB_CHANNELS] - state[:, RGB_CHANNELS:]], dim=1)


def to_unit(frames: Tensor) -> Tensor:
    """Convert frames (..., size, size, 3) uint8 to (..., 3, size, size) with values from -1 to 1."""
    return frames.movedim(-1, -3).to(torch.float32) / 127.5 - 1
