"""The interface of an encoder's model: a trainable network from camera frames to features."""

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
    targets: tuple[Tensor, ...] = ()
    """Later observations for the frames and for their mirror images, or features of a teacher."""


class EncoderModel(nn.Module, abc.ABC):
    """Encodes the frames of one or more cameras.

    Its constructor takes `(config, cameras, *, plain_dim, generator)`.
    """

    size: int
    """Height and width of the frames that it takes; others are resized first."""
    feature_dim: int
    """Number of features of the frames of all cameras, camera by camera, equally many of each."""
    mirror: FrameMirror | None = None
    """Mirror symmetry of the scene, used to augment the training frames."""

    @abc.abstractmethod
    def forward(self, values: Tensor, *frames: Tensor) -> Tensor:
        """Encode observations (n, plain_dim) and frames (n, size, size, 3) uint8 as (n, feature_dim)."""

    def augment(self, frames: Tensor, generator: torch.Generator) -> Tensor:
        """Change training frames (n, size, size, 3) at random, if the encoder is trained with the policy.

        They may become smaller: `forward` takes frames of both sizes.
        """
        return frames

    @property
    def measures_shift(self) -> bool:
        """Whether it measures how far each camera is shifted, and undoes that in whole pixels."""
        return False

    def encode_and_measure(
        self, values: Tensor, shift: Tensor | None, *frames: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Encode frames after undoing a shift, and measure what is left of it; 0 unless `measures_shift`.

        Shifts are in pixels (x, y), (n, cameras, 2); the one to undo is in whole pixels, or None.
        """
        return self(values, *frames), values.new_zeros(len(values), len(frames), 2)

    def fold_for_export(self) -> nn.Module:
        """Return a module of one row for export.

        It maps values (plain_dim,) and frames (size, size, 3) uint8 of each camera to a tuple of features
        (feature_dim,). If the encoder measures shifts, it has another argument before the frames, the shift
        to undo, (cameras, 2), and returns the shift that is measured then, as `encode_and_measure`.
        """
        return _OneRow(self)


class StagedEncoderModel(EncoderModel, TrainableModel[CameraBatch]):
    """An encoder that is trained before the policy, on frames alone."""

    def set_scene(self, low: Tensor, high: Tensor, backgrounds: Sequence[Tensor]) -> None:
        """Store the range (plain_dim,) of the observations and a typical picture of each camera."""

    @property
    def masked_steps(self) -> int:
        """Steps of a second training, with the first one as teacher, on frames with hidden parts."""
        return 0

    def learn_from_teacher(self, std: Tensor) -> None:
        """Begin the second training; `std` scales the features of the teacher, (feature_dim,)."""


class _OneRow(nn.Module):
    """An encoder for one row, which does not measure shifts."""

    def __init__(self, encoder: EncoderModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, values: Tensor, *frames: Tensor) -> tuple[Tensor, ...]:
        """Encode the frames of one row, (size, size, 3) each, as (feature_dim,)."""
        return (self.encoder(values[None], *(frame[None] for frame in frames))[0],)


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
