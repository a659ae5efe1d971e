"""The interface of an encoder's model: a trainable network from camera frames to features."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsde_policy.core.batches import TensorRows
from nsde_policy.data.augmentation import FrameMirror
from nsde_policy.data.frames import FrameFile
from nsde_policy.data.types import Floats
from nsde_policy.methods.base import TrainableModel

from .occlusion import disturb_frames

VISIBILITY_FILE = "visibility.safetensors"
"""Weights of `VisibilityHead` in the folder of an encoder."""
MIN_STD = 1e-4
"""Smallest standard deviation of a feature."""
FEATURE_BETA = 0.02
"""Error of a feature below which its loss is quadratic, in standard deviations."""


@dataclass(frozen=True)
class CameraBatch(TensorRows):
    """Frames of all cameras at some moments, with what is measured at these moments."""

    values: Tensor
    """Low-dimensional observations, (n, plain_dim)."""
    mirrored_values: Tensor
    """The same for the mirrored scene; equal to `values` without a mirror symmetry."""
    frames: tuple[Tensor, ...]
    """Frames of each camera, (n, size, size, 3) uint8."""
    targets: tuple[Tensor, ...] = ()
    """What `EncoderModel.study` returned for the frames, or features of a teacher."""


@dataclass(frozen=True)
class RecordedFrames:
    """All frames of some demonstrations, and the episodes of them that an encoder is trained on."""

    values: Floats
    """Low-dimensional observations, (frames, plain_dim)."""
    mirrored_values: Floats
    """The same for the mirrored scene."""
    episodes: tuple[range, ...]
    """Rows of each episode."""
    file: FrameFile

    def read(self, camera: int, rows: Sequence[int]) -> Tensor:
        """Read frames of one camera, (n, size, size, 3) uint8."""
        return torch.from_numpy(self.file.read(np.asarray(rows))[camera])


class VisibilityHead(nn.Linear):
    """Predicts how much of what a policy relies on is visible: the fraction of its features that are right.

    What hides a part of the scene changes features, and shows in the maps that the encoder computes anyway.
    """

    mean: Tensor
    std: Tensor
    usual: Tensor

    def __init__(self, summary_dim: int) -> None:
        super().__init__(2 * summary_dim, 1)
        self.requires_grad_(False)
        self.register_buffer("mean", torch.zeros(summary_dim))
        self.register_buffer("std", torch.ones(summary_dim))
        self.register_buffer("usual", torch.ones(()))  # the fraction in most undisturbed frames

    def forward(self, summary: Tensor) -> Tensor:
        """Map summaries (n, summary_dim) to the visible fraction, (n,)."""
        return super().forward(self.expand(summary))[:, 0].clamp(0, 1)

    def expand(self, summary: Tensor) -> Tensor:
        """Return summaries in standard deviations, and their squares, (n, 2 · summary_dim)."""
        scaled = (summary.float() - self.mean) / self.std
        return torch.cat([scaled, scaled.square()], dim=1)


class DisturbedFeatures(NamedTuple):
    """Features of disturbed frames, as they are learned from a teacher."""

    features: Tensor
    """Features of the frames of all cameras, (n, feature_dim)."""
    is_taught: Tensor
    """Whether the teacher's features of the clean frames are right for each camera, (n, cameras)."""
    losses: Mapping[str, Tensor] = {}
    """Further losses of the encoder."""


class EncoderModel(TrainableModel[CameraBatch]):
    """Encodes the frames of one or more cameras.

    Its constructor takes `(config, cameras, *, plain_dim, generator)`. After it is trained, it may be the
    teacher of a copy of itself: the copy sees the same frames occluded and in another light, and learns
    the teacher's features of the clean ones. That costs nothing when a policy acts.
    """

    size: int
    """Height and width of the frames that it takes; others are resized first."""
    feature_dim: int
    """Number of features of the frames of all cameras, camera by camera, equally many of each."""
    build_margin: ClassVar[int] = 4
    """Its constructor may create this many times the parameters that are in its file, or loading fails."""
    mirror: FrameMirror | None = None
    """Mirror symmetry of the scene, used to augment the training frames."""

    teacher_std: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("teacher_std", None, persistent=False)
        self.visibility: VisibilityHead | None = None  # added after its weights are loaded

    def forward(self, values: Tensor, *frames: Tensor) -> Tensor:
        """Encode observations (n, plain_dim) and frames (n, size, size, 3) uint8 as (n, feature_dim)."""
        return self.summarize(values, *frames)[0]

    @abc.abstractmethod
    def summarize(self, values: Tensor, *frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode as `forward`, and also return a summary that predicts wrong features, (n, summary_dim).

        The summary may be the features themselves; means of the maps of a network predict better.
        """

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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Encode frames after undoing a shift, measure what is left of it, and summarize.

        Shifts are in pixels (x, y), (n, cameras, 2); the one to undo is in whole pixels, or None. They are 0
        unless `measures_shift`.
        """
        features, summary = self.summarize(values, *frames)
        return features, values.new_zeros(len(values), len(frames), 2), summary

    def load_pretrained(self) -> None:
        """Load the weights that training starts from, if the settings name a file with some."""

    def study(self, recorded: RecordedFrames) -> tuple[Tensor, ...]:
        """Learn what all frames tell at once, before training; return targets of each frame, (frames, n)."""
        return ()

    def learn_from_teacher(self, std: Tensor) -> None:
        """Learn a teacher's features of clean frames from now on; `std` scales them, (feature_dim,)."""
        self.teacher_std = std.clamp(min=MIN_STD)

    def encode_disturbed(
        self, values: Tensor, frames: Sequence[Tensor], generator: torch.Generator
    ) -> DisturbedFeatures:
        """Disturb frames (n, size, size, 3) of each camera at random, and encode them."""
        disturbed = [self.augment(disturb_frames(camera, generator), generator) for camera in frames]
        return DisturbedFeatures(self(values, *disturbed), values.new_ones(len(values), len(disturbed)))

    def loss(self, batch: CameraBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the error of features against those of a teacher, in standard deviations."""
        assert self.teacher_std is not None
        values, flip = self.choose_mirrored(batch, generator)
        plain, mirrored = batch.targets
        target = plain if flip is None else torch.where(flip[:, None], mirrored, plain)
        frames = [self.flip(camera, flip) for camera in batch.frames]
        features, is_taught, losses = self.encode_disturbed(values, frames, generator)
        std = self.teacher_std
        wrong = F.smooth_l1_loss(features / std, target / std, beta=FEATURE_BETA, reduction="none")
        wrong = wrong.view(*is_taught.shape, -1).mean(2) * is_taught
        return {"features": (wrong.sum(0) / is_taught.sum(0).clamp(min=1)).mean(), **losses}

    def choose_mirrored(self, batch: CameraBatch, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Mirror half of the rows; return measured values, and which rows are mirrored."""
        if self.mirror is None:
            return batch.values, None
        n, device = len(batch.values), batch.values.device
        flip = torch.rand(n, device=device, generator=generator) < 0.5
        return torch.where(flip[:, None], batch.mirrored_values, batch.values), flip

    def flip(self, frames: Tensor, rows: Tensor | None) -> Tensor:
        """Return frames (n, size, size, 3) with the mirror images of the chosen rows, (n,)."""
        if rows is None or self.mirror is None:
            return frames
        return torch.where(rows[:, None, None, None], mirror_frames(frames, self.mirror), frames)


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
