"""The interface of an encoder's model: a trainable network from camera frames to codes."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsde_policy.data.augmentation import FrameMirror
from nsde_policy.methods.base import TrainableModel


@dataclass(frozen=True)
class CameraBatch:
    """Frames of all cameras at some moments, with what is measured at these moments."""

    values: Tensor
    """Low-dimensional observations, (n, plain_dim)."""
    mirrored_values: Tensor
    """The same for the mirrored scene; equal to `values` without a mirror symmetry."""
    frames: tuple[Tensor, ...]
    """Frames of each camera, (n, size, size, 3) uint8."""


class EncoderModel(nn.Module, abc.ABC):
    """Encodes the frames of one or more cameras.

    Its constructor takes `(config, cameras, *, plain_dim, generator)`.
    """

    size: int
    """Height and width of the frames that it takes; others are resized first."""
    code_dim: int
    """Number of values that encode the frames of all cameras."""
    mirror: FrameMirror | None = None
    """Mirror symmetry of the scene, used to augment the training frames."""

    @abc.abstractmethod
    def forward(self, values: Tensor, *frames: Tensor) -> Tensor:
        """Encode the frames of each row.

        Args:
            values: Low-dimensional observations, (n, plain_dim).
            frames: One frame per row of each camera, (n, size, size, 3) uint8.

        Returns:
            Codes, (n, code_dim).
        """

    def augment(self, frames: Tensor, generator: torch.Generator) -> Tensor:
        """Change training frames (n, size, size, 3) at random, if the encoder is trained with the policy.

        They may become smaller: `forward` takes frames of both sizes.
        """
        return frames


class StagedEncoderModel(EncoderModel, TrainableModel[CameraBatch]):
    """An encoder that is trained before the policy, on frames alone."""

    def prepare(self, low: Tensor, high: Tensor, backgrounds: Sequence[Tensor]) -> None:
        """Prepare for training.

        Args:
            low: Smallest low-dimensional observation, (plain_dim,).
            high: Largest one.
            backgrounds: Typical picture of each camera, (size, size, 3) uint8.
        """


def mirror_frames(frames: Tensor, mirror: FrameMirror) -> Tensor:
    """Return the frames of the mirrored scene, (..., height, width, channels)."""
    if mirror == "left_right":
        return frames.flip(-2)
    if mirror == "up_down":
        return frames.flip(-3)
    swapped = frames.transpose(-3, -2)
    return swapped if mirror == "transpose" else swapped.flip((-3, -2))


def to_unit_rgb(frames: Tensor) -> Tensor:
    """Convert frames (n, height, width, 3) uint8 to (n, 3, height, width) float32 in [-1, 1]."""
    return frames.permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1
