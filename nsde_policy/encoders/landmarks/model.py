"""The landmark encoder of one or more cameras: one heat map per landmark."""

import logging
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsde_policy.core.networks import weights_from
from nsde_policy.core.spec import CameraSpec
from nsde_policy.errors import ConfigError

from ..encoder_model import CameraBatch, EncoderModel, RecordedFrames, to_unit_rgb
from ..layers import NormedConv, ResidualBlock, average_maps, make_axis
from ..occlusion import change_light
from .config import LandmarkConfig
from .matching import find_landmarks, follow

logger = logging.getLogger(__name__)

ROTATION, ZOOM, SHIFT = 0.12, 0.12, 0.15
"""Largest random rotation of a training frame in rad, relative change of its scale, and shift in half
frames."""
GAIN, NOISE = 0.2, 0.01
"""Largest relative change of its brightness, and the standard deviation of its noise."""
PEAK_CELLS = 2.5
"""The place of a landmark is the mean of its heat map within this many cells of the largest value."""
TARGET_CELLS = 0.8
"""Standard deviation of the heat map that a label asks for."""
LABELLED_EPISODES = 100
"""Most episodes whose frames are labelled."""
HELD, HELD_WEIGHT = 10, 0.5
"""Frames for which a hidden landmark is expected to stay where it was seen last, and how much they count: the
gripper hides a thing before it moves it."""


class LandmarkNetwork(nn.Module):
    """Frames to heat maps of half the size."""

    def __init__(self, *, landmarks: int, width: int) -> None:
        super().__init__()
        w = width
        self.shallow = nn.Sequential(NormedConv(3, w, 3), NormedConv(w, 2 * w, 3, stride=2))
        self.deep = nn.Sequential(ResidualBlock(2 * w, 4 * w, stride=2), ResidualBlock(4 * w, 4 * w))
        self.join = NormedConv(6 * w, 2 * w, 3)
        self.maps = nn.Conv2d(2 * w, landmarks, 1)

    def forward(self, rgb: Tensor) -> tuple[Tensor, Tensor]:
        """Map frames (n, 3, size, size) in [-1, 1] to maps (n, landmarks, size / 2, size / 2).

        Also return the means of the last features, (n, 6 · width).
        """
        shallow = self.shallow(rgb)
        deep = self.deep(shallow)
        enlarged = F.interpolate(deep, scale_factor=2.0, mode="nearest")
        features = self.join(torch.cat([shallow, enlarged], dim=1))
        with torch.autocast(features.device.type, enabled=False):
            return self.maps(features.float()), average_maps(features, deep)


class LandmarkModel(EncoderModel):
    """Places of landmarks in the frames of every camera.

    Landmarks are found by comparing the first frames of the episodes, and followed from there as long as
    they are seen (`matching`). That labels a part of the frames. The network learns the labels in frames that
    are turned, zoomed, shifted and in another light.
    """

    is_found: Tensor

    def __init__(
        self,
        config: LandmarkConfig,
        cameras: Sequence[CameraSpec],
        *,
        plain_dim: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config, self.size = config, config.size
        self.feature_dim = 2 * config.landmarks * len(cameras)
        self._names = [camera.name for camera in cameras]
        self.register_buffer("is_found", torch.zeros(len(cameras), config.landmarks))
        with weights_from(generator):
            self.cameras = nn.ModuleList(
                LandmarkNetwork(landmarks=config.landmarks, width=config.width) for _ in cameras
            )

    def summarize(self, values: Tensor, *frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the landmarks of all cameras, x and y interleaved, and the means of maps."""
        features, summaries = [], []
        for network, is_found, camera in zip(self._networks(), self.is_found, frames, strict=True):
            maps, summary = network(to_unit_rgb(camera))
            places, _ = find_peaks(maps)
            features.append((places * is_found[:, None]).flatten(1))
            summaries.append(summary)
        return torch.cat(features, dim=1), torch.cat(summaries, dim=1)

    @torch.no_grad()
    def study(self, recorded: RecordedFrames) -> tuple[Tensor, ...]:
        """Find landmarks and follow them; return their labels in the frames of each camera.

        Labels are (x, y) from -1 to 1 and how much they count, (frames, landmarks · 3).

        Raises:
            ConfigError: If no camera shows landmarks, or the scene is mirrored.
        """
        if self.mirror is not None:
            raise ConfigError(
                "landmarks are not mirrored: set demos.mirror to False, or use --encoder keypoints"
            )
        labels = [self._label(recorded, i) for i in range(len(self.cameras))]
        if not self.is_found.any():
            raise ConfigError(
                "no landmarks: nothing small stands elsewhere at the start of each episode while the rest of "
                "the picture stays the same; use --encoder keypoints"
            )
        return tuple(labels)

    def _label(self, recorded: RecordedFrames, camera: int) -> Tensor:
        """Find and follow the landmarks of one camera; return their labels in all frames."""
        spans = recorded.episodes[:LABELLED_EPISODES]
        episodes = [recorded.read(camera, rows) for rows in spans]
        values = torch.from_numpy(recorded.values[[rows[0] for rows in spans]])
        landmarks = find_landmarks(episodes, values, self.config.landmarks)
        self.is_found[camera, : len(landmarks)] = 1
        labels = torch.zeros(len(recorded.values), self.config.landmarks, 3)
        rows = torch.cat([torch.as_tensor(rows) for rows in spans])
        for i, landmark in enumerate(landmarks):
            places, age = follow(landmark.template, episodes)
            labels[rows, i, :2] = (places + 0.5) * (2 / self.size) - 1
            labels[rows, i, 2] = (age == 0) + HELD_WEIGHT * ((age > 0) & (age <= HELD))
        logger.info(
            "%s: %d landmarks, seen in %.0f %% of the frames",
            self._names[camera],
            len(landmarks),
            100 * (labels[rows, : len(landmarks), 2] == 1).float().mean().nan_to_num(),
        )
        return labels.flatten(1)

    def loss(self, batch: CameraBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return how far the heat maps are from bumps at the labels (divergence, mean over cameras)."""
        if self.teacher_std is not None:
            return super().loss(batch, generator)
        losses = []
        for network, frames, targets in zip(self._networks(), batch.frames, batch.targets, strict=True):
            labels = targets.view(len(frames), -1, 3)
            rgb, places = _disturb(frames, labels[..., :2], generator)
            weight = labels[..., 2] * (places.abs() < 1).all(-1)
            maps, _ = network(rgb)
            divergence = _measure_divergence(maps, places)
            losses.append((divergence * weight).sum() / weight.sum().clamp(min=1))
        return {"place": torch.stack(losses).mean()}

    def _networks(self) -> list[LandmarkNetwork]:
        return cast("list[LandmarkNetwork]", [*self.cameras])


def find_peaks(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean place (x, y) around the peak of each map, (n, k, h, w) to (n, k, 2), from -1 to 1.

    Also return how much of the map's softmax is there, (n, k).
    """
    height, width = maps.shape[2:]
    weight = maps.flatten(2).softmax(-1)
    peak = weight.argmax(-1)
    weight = weight.view_as(maps)
    y, x = make_axis(height, maps), make_axis(width, maps)
    row = (y - y[peak // width][..., None]).abs() <= PEAK_CELLS * 2 / height
    column = (x - x[peak % width][..., None]).abs() <= PEAK_CELLS * 2 / width
    weight = weight * row[..., :, None] * column[..., None, :]
    mass = weight.sum((2, 3))
    places = torch.stack([(weight.sum(2) * x).sum(-1), (weight.sum(3) * y).sum(-1)], -1)
    return places / mass[..., None], mass


def _disturb(frames: Tensor, places: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Turn, zoom, shift and relight frames (n, size, size, 3); also return where places (n, k, 2) go."""
    n, device = len(frames), frames.device

    def sample(largest: float, *shape: int) -> Tensor:
        return largest * (2 * torch.rand(n, *shape, device=device, generator=generator) - 1)

    noise = NOISE * torch.randn(frames.shape, device=device, generator=generator)
    rgb = to_unit_rgb(change_light(frames, 1 + sample(GAIN), noise))
    angle, scale, shift = sample(ROTATION), 1 + sample(ZOOM), sample(SHIFT, 2)
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    matrix = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    grid = F.affine_grid(torch.cat([matrix, shift[..., None]], -1), list(rgb.shape), align_corners=False)
    turned = F.grid_sample(rgb, grid, padding_mode="border", align_corners=False)
    inverse = matrix.mT / scale.square()[:, None, None]
    return turned, ((places - shift[:, None])[..., None, :] @ inverse[:, None].mT)[..., 0, :]


def _measure_divergence(maps: Tensor, places: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of heat maps (n, k, h, w) from bumps at places, (n, k)."""
    logs = []
    for length, place in zip(maps.shape[2:], (places[..., 1:], places[..., :1]), strict=True):
        cells = (make_axis(length, maps) - place) * (length / 2 / TARGET_CELLS)
        logs.append((-0.5 * cells.square()).log_softmax(-1))
    bump = (logs[0][..., :, None] + logs[1][..., None, :]).flatten(2)
    return (bump.exp() * (bump - maps.flatten(2).log_softmax(-1))).sum(-1)
