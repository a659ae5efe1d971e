"""The interface of a method of video prediction, and what its models share."""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from nsde_policy.core.networks import weights_from
from nsde_policy.core.targets import TensorRows
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.video.config import UnrollConfig, VideoModelConfig
from nsde_policy.video.pixels import RGB_CHANNELS, to_unit
from nsde_policy.video.uvit import UViT


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
    is_first: bool
    """Whether the state holds recorded frames with noise."""


class StepResult(NamedTuple):
    """What a method computes for one predicted frame in training."""

    losses: dict[str, Tensor]
    predicted: Tensor | None = None
    """The next frame, if the method samples it with the same single network call."""


class VideoModel(TrainableModel[VideoBatch]):
    """Predicts the next frame x_{t+1} of a video from its state X_t = (x_t, x_{t-1}, …), newest first.

    Frames are (n, 3, size, size) with values from -1 to 1; a state is (n, 3 · context, size, size).

    Args:
        config: Settings of the method.
        size: Height and width of the frames.
        increment_std: Root mean square change of a pixel over one frame.
        generator: Source of the initial weights.
    """

    extra_frames: ClassVar[int] = 0
    """Frames of the network's input beside the state."""
    has_time: ClassVar[bool] = False
    """Whether the network takes a time between two frames."""
    heads: ClassVar[tuple[str, ...]] = ()
    """Outputs of the network, each with the shape of a frame."""
    loss_names: tuple[str, ...] = ()
    """Losses that are minimised together."""

    increment_std: Tensor

    def __init__(
        self,
        config: VideoModelConfig,
        *,
        size: int,
        increment_std: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config = config
        self.unrolled: UnrollConfig | None = None
        """Settings of unrolled training; None for the first phase."""
        with weights_from(generator):
            self.network = UViT(
                config.backbone,
                inputs=RGB_CHANNELS * (config.context + self.extra_frames),
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
        return self.config.context + (self.unrolled.frames if self.unrolled else 1)

    def stages(self) -> tuple[Stage, ...]:
        """Train everything at once."""
        return (Stage(self.loss_names, tuple(self.parameters())),)

    def loss(self, batch: VideoBatch, generator: torch.Generator) -> LossParts:
        """Return the losses of predicting the next frame, or several frames in unrolled training."""
        frames, context = to_unit(batch.frames), self.config.context
        state = self.add_context_noise(stack_state(frames[:, :context]), generator)
        unroll = self.unrolled or UnrollConfig(frames=1)
        parts = []
        for k in range(unroll.frames):
            now = context - 1 + k
            step = PredictedStep(state, frames[:, now], frames[:, now + 1], is_first=k == 0)
            losses, predicted = self.step_losses(step, generator)
            parts.append(losses)
            if k + 1 < unroll.frames:
                if predicted is None or unroll.calls > 1:
                    with torch.set_grad_enabled(unroll.gradients):
                        predicted = self.predict(state, calls=unroll.calls, generator=generator)
                state = shift_state(state, predicted if unroll.gradients else predicted.detach())
        return LossParts({name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]})

    @abc.abstractmethod
    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the losses of one predicted frame; all randomness comes from `generator`."""

    @abc.abstractmethod
    def predict(
        self, state: Tensor, *, calls: int | None = None, generator: torch.Generator, **options: Any
    ) -> Tensor:
        """Sample the next frame with a number of network calls; None for the settings'."""

    @torch.no_grad()
    def generate(
        self,
        frames: Tensor,
        *,
        steps: int,
        calls: int | None = None,
        generator: torch.Generator,
        **options: Any,
    ) -> Tensor:
        """Predict `steps` frames after the given ones, frame by frame.

        Args:
            frames: Context, (n, context, size, size, 3) uint8, oldest first.
            steps: Number of frames.
            calls: Network calls per frame; None for the settings'.
            generator: Source of all randomness.
            options: Further options of the method's `predict`.

        Returns:
            Frames with values from -1 to 1, (n, steps, 3, size, size).
        """
        state = stack_state(to_unit(frames))
        found = []
        for _ in range(steps):
            frame = self.predict(state, calls=calls, generator=generator, **options).clamp(-1, 1)
            found.append(frame)
            state = shift_state(state, frame)
        return torch.stack(found, dim=1)

    def run_network(self, inputs: Tensor, time: Tensor | None = None) -> dict[str, Tensor]:
        """Return the outputs of the network by name."""
        features = self.network(inputs, time)
        return {name: head(features).float() for name, head in self.outputs.items()}

    def add_context_noise(self, state: Tensor, generator: torch.Generator) -> Tensor:
        """Add noise of the settings' strength to every frame of a state."""
        sigma = self.config.context_noise
        if not sigma:
            return state
        noise = torch.randn(state.shape, generator=generator, device=state.device)
        if self.config.noise == "fixed":
            return state + sigma * noise
        return (
            state
            + sigma * torch.rand((len(state), 1, 1, 1), generator=generator, device=state.device) * noise
        )


def stack_state(frames: Tensor) -> Tensor:
    """Stack frames (n, context, 3, size, size), oldest first, as a state, newest first."""
    return frames.flip(1).flatten(1, 2)


def shift_state(state: Tensor, frame: Tensor) -> Tensor:
    """Return the state after `frame`: the new frame first, the oldest dropped."""
    return torch.cat([frame, state[:, : -frame.shape[1]]], dim=1)
