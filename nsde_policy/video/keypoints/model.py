"""Video prediction in keypoints: train on videos, and predict frames between frames."""

from typing import Literal

import torch
from torch import Tensor

from nsde_policy.errors import ConfigError
from nsde_policy.training.loop import FitRecord, fit
from nsde_policy.video.base import VideoBatch
from nsde_policy.video.keypoints.config import LayerConfig, MotionConfig
from nsde_policy.video.keypoints.layers import LayerAutoencoder
from nsde_policy.video.keypoints.motion import KeypointMotion, TrackWindows, find_encounters, kink
from nsde_policy.video.spaces import to_unit

CUT_BATCH = 512
"""Frames that are cut into layers at once."""
MEDIAN_FRAMES = 512
"""Frames whose median is the background."""
Between = Literal["solver", "kink", "straight"]
"""How frames between whole frames are found: by the solver, by two lines that meet, or by one line."""


class KeypointVideo:
    """Predicts videos: cuts the newest frame into layers and moves them."""

    def __init__(self, layers: LayerAutoencoder, motion: KeypointMotion) -> None:
        self.layers, self.motion = layers.eval(), motion.eval()

    @torch.no_grad()
    def generate(self, frames: Tensor, *, steps: int, substeps: int, between: Between = "solver") -> Tensor:
        """Predict frames at a fraction of the period.

        Args:
            frames: Context, (n, context, size, size, 3) uint8, oldest first.
            steps: Number of whole frames to predict.
            substeps: Frames per whole frame.
            between: How frames between whole ones are found.

        Returns:
            Frames with values from -1 to 1, (n, steps · substeps, 3, size, size).
        """
        n, context = frames.shape[:2]
        seen = to_unit(frames)
        cut = (part.reshape(n, context, *part.shape[1:]) for part in self.layers.cut(seen.flatten(0, 1)))
        masks, keypoints, present, rings = cut
        bodies = self.motion.describe(rings.mean(1), present[:, -1])
        path = self.motion.solve(self.motion.estimate(keypoints, bodies), bodies, steps)
        own = self.motion.config.substeps
        if between == "solver":
            if own % substeps:
                raise ConfigError(f"the solver takes {own} steps per frame, which {substeps} does not divide")
            places = path[:: own // substeps, ..., :2]
        else:
            whole = path[::own].clone()
            if between == "straight":
                whole[1:, ..., 2:] = whole[1:, ..., :2] - whole[:-1, ..., :2]
            places = kink(whole, substeps)
        content = self.layers.separate(seen[:, -1], masks[:, -1])
        moved = (places[1:] - keypoints[:, -1]) * bodies.present[..., None]
        return torch.stack([self.layers.draw(content, each).clamp(-1, 1) for each in moved], dim=1)


def train_layers(frames: Tensor, config: LayerConfig, *, seed: int) -> tuple[LayerAutoencoder, FitRecord]:
    """Train layers on videos (videos, length, size, size, 3) uint8, on their device."""
    layers = LayerAutoencoder(config, size=frames.shape[2], generator=torch.Generator().manual_seed(seed))
    layers.to(frames.device).measure_background(frames[:MEDIAN_FRAMES, 0])
    batches = VideoBatch(frames, torch.zeros((*frames.shape[:2], 0), device=frames.device))
    return layers, fit(layers, batches, config.train, seed=seed)


@torch.no_grad()
def track(layers: LayerAutoencoder, frames: Tensor, config: MotionConfig) -> TrackWindows:
    """Find the keypoints of videos (videos, length, size, size, 3) uint8 and make training windows of them.

    Windows in which keypoints meet are repeated as often as the settings say.
    """
    parts = []
    for videos in torch.split(frames, max(1, CUT_BATCH // frames.shape[1])):
        cut = layers.cut(to_unit(videos).flatten(0, 1))
        _, keypoints, present, rings = (part.reshape(*videos.shape[:2], *part.shape[1:]) for part in cut)
        exists = (present.mean(1) > 0.5).float()
        parts.append((keypoints, exists, rings[:, : config.context].mean(1)))
    keypoints, exists, rings = (torch.cat(part) for part in zip(*parts, strict=True))
    most = max(int(exists.sum(1).max()), 2)
    order = exists.argsort(dim=1, descending=True)[:, :most]  # leaves out layers that are always empty
    keypoints = keypoints.take_along_dim(order[:, None, :, None], dim=2)
    exists, rings = exists.take_along_dim(order, dim=1), rings.take_along_dim(order[..., None], dim=1)
    length = config.context + config.frames
    every, meeting = find_encounters(keypoints, exists, length)
    copies = round(config.encounters * len(every) / max(len(meeting), 1))
    return TrackWindows(keypoints, exists, rings, torch.cat([every, meeting.repeat(copies, 1)]), length)


def train_motion(
    tracks: TrackWindows, config: MotionConfig, *, crop: int, seed: int
) -> tuple[KeypointMotion, FitRecord]:
    """Train the motion of keypoints on their device."""
    moved = tracks.keypoints.diff(dim=1).square().sum(-1) * tracks.present[:, None]
    unit = float((moved.sum() / (tracks.present.sum() * moved.shape[1])).sqrt())
    motion = KeypointMotion(config, crop=crop, unit=unit, generator=torch.Generator().manual_seed(seed)).to(
        tracks.keypoints.device
    )
    return motion, fit(motion, tracks, config.train, seed=seed)
