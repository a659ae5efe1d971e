"""The keypoint autoencoder of one or more cameras."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsde_policy.core.spec import CameraSpec

from ..encoder_model import CameraBatch, DisturbedFeatures, EncoderModel, RecordedFrames, to_unit_rgb
from ..occlusion import disturb_frames, shift_frames
from .config import FORESEEN, KeypointConfig
from .networks import CameraAutoencoder, KeypointNetwork

BACKGROUND_FRAMES = 500
"""Most first frames of episodes whose median is the background."""
ERROR_UNIT = 20.0
"""The squared error of a frame is divided by this number, which makes its gradients about as large as 1."""
SHIFTED, UNDONE = 0.6, 0.65
"""With a teacher: fraction of the frames that are shifted, and of those whose shift is undone before."""
SHIFT_BETA, SHIFT_WEIGHT = 0.3, 0.3
"""With a teacher: error of a shift below which its loss is quadratic, pixels, and the weight of that loss."""


class KeypointModel(EncoderModel):
    """Keypoints of every camera, trained by redrawing each frame from its keypoints, or by foresight.

    The decoder is told everything that is known: a background and positions that follow from the measured
    values (those of the robot itself), so that the keypoints describe what is left. Frames are augmented with
    mirror images and shifts, which the decoder is told as well.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        config: KeypointConfig,
        cameras: Sequence[CameraSpec],
        *,
        plain_dim: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config, self.size = config, config.size
        self.feature_dim = 2 * config.keypoints * len(cameras)
        self.register_buffer("low", torch.full((plain_dim,), -1.0))
        self.register_buffer("high", torch.ones(plain_dim))
        self.cameras = nn.ModuleList(
            CameraAutoencoder(config, self.build_network, plain_dim, generator) for _ in cameras
        )

    def build_network(self) -> nn.Module:
        """Build the network from the frames of a camera to keypoints and anchors."""
        config = self.config
        return KeypointNetwork(keypoints=config.keypoints + config.anchors, width=config.width)

    def trained_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return all parameters; with a teacher, all but those of the decoder."""
        if self.teacher_std is None:
            return super().trained_parameters()
        drawing = (".decoder.", ".locate.")
        named = self.named_parameters()
        return tuple(value for name, value in named if not any(part in name for part in drawing))

    def set_scene(self, low: Tensor, high: Tensor, backgrounds: Sequence[Tensor]) -> None:
        """Store the range of the measured values, (plain_dim,), and backgrounds (size, size, 3) uint8."""
        self.low.copy_(low)
        self.high.copy_(torch.where(high > low, high, low + 1))
        for camera, background in zip(self.autoencoders(), backgrounds, strict=True):
            camera.background.copy_(background)

    def study(self, recorded: RecordedFrames) -> tuple[Tensor, ...]:
        """Store the range of the measured values and the background, the median of first frames.

        Return the measured values at `FORESEEN` of each frame, or at the end of its episode, side by side,
        and those of the mirrored scene.
        """
        both = torch.from_numpy(np.concatenate([recorded.values, recorded.mirrored_values]))
        starts = [rows[0] for rows in recorded.episodes[:BACKGROUND_FRAMES]]
        first = [recorded.read(camera, starts).numpy() for camera in range(len(self.cameras))]
        backgrounds = [torch.from_numpy(np.median(frames, axis=0).astype(np.uint8)) for frames in first]
        self.set_scene(both.amin(0), both.amax(0), backgrounds)
        targets = []
        for values in both.chunk(2):
            target = values.repeat(1, len(FORESEEN))
            for rows in recorded.episodes:
                later = [values[[min(row + ahead, rows[-1]) for row in rows]] for ahead in FORESEEN]
                target[rows[0] : rows[-1] + 1] = torch.cat(later, dim=1)
            targets.append(target)
        return tuple(targets)

    def summarize(self, values: Tensor, *frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keypoints of all cameras, camera by camera, x and y interleaved, and the means of maps.

        With anchors, the shift of each camera is undone in the picture, in whole pixels. Keypoints could be
        corrected instead, but the network looks at a grid coarser than the pixels: moving the picture by less
        than a cell of it changes keypoints by more than their precision.
        """
        features, measured, summary = self.encode_and_measure(values, None, *frames)
        if not self.measures_shift:
            return features, summary
        shift = measured.round()
        if shift.is_cuda:  # finding the shifted rows would wait for the device
            features, _, summary = self.encode_and_measure(values, shift, *frames)
            return features, summary
        rows = shift.flatten(1).any(1).nonzero()[:, 0]
        if len(rows):
            shifted = (frame[rows] for frame in frames)
            steady, _, maps = self.encode_and_measure(values[rows], shift[rows], *shifted)
            features, summary = features.index_copy(0, rows, steady), summary.index_copy(0, rows, maps)
        return features, summary

    def encode_and_measure(
        self, values: Tensor, shift: Tensor | None, *frames: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Encode frames after undoing a shift, (n, cameras, 2) in pixels, and measure their shift then.

        A measured shift beyond those of training is a mistake, and limited to them.
        """
        scaled, reach = self.scale(values), self.config.shift
        features, measured, summaries = [], [], []
        for i, (camera, unlevelled) in enumerate(zip(self.autoencoders(), frames, strict=True)):
            level = camera.level(unlevelled)
            steady = level if shift is None else shift_frames(level, -shift[:, i].long())
            keypoints, anchors, summary = camera.find_points(steady)
            summaries.append(summary)
            features.append(keypoints.flatten(1))
            measured.append(camera.measure_shift(anchors, scaled))
        shifts = torch.stack(measured, dim=1).clamp(-reach, reach)
        return torch.cat(features, dim=1), shifts, torch.cat(summaries, dim=1)

    @property
    def measures_shift(self) -> bool:
        """Whether there are anchors."""
        return self.config.anchors > 0

    def scale(self, values: Tensor) -> Tensor:
        """Scale measured values, (n, plain_dim), to [-1, 1]."""
        return 2 * (values - self.low) / (self.high - self.low) - 1

    def loss(self, batch: CameraBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the losses, with random mirror images and shifts, averaged over the cameras.

        `redraw` is the squared error of the redrawn frames, `foresight` that of later observations. With
        anchors, `shift` is the squared error of the measured shift, and `steadiness` the squared change of
        keypoints after a shift was undone, which leaves a damaged margin; both in pixels.
        """
        if self.teacher_std is not None:
            return super().loss(batch, generator)
        measured, flip = self.choose_mirrored(batch, generator)
        values = self.scale(measured)
        later = batch.targets[0] if self.config.foresight else None
        if later is not None and flip is not None:
            later = torch.where(flip[:, None], batch.targets[1], later)
        parts: list[dict[str, Tensor]] = []
        for camera, frames in zip(self.autoencoders(), batch.frames, strict=True):
            level = camera.level(frames)
            background = self.flip(camera.background.expand_as(level), flip)
            losses = self._camera_losses(camera, self.flip(level, flip), background, values, later, generator)
            parts.append(losses)
        return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}

    def encode_disturbed(
        self, values: Tensor, frames: Sequence[Tensor], generator: torch.Generator
    ) -> DisturbedFeatures:
        """Encode frames that are disturbed and, with anchors, also shifted, most after the shift is undone.

        Keypoints are taught in frames without a shift, and the measured shift in all.
        """
        scaled = self.scale(values)
        features, taught, shifts = [], [], []
        for camera, clean in zip(self.autoencoders(), frames, strict=True):
            points, measured, left = self._encode_shifted(camera, clean, scaled, generator)
            features.append(points)
            taught.append((left == 0).all(1))
            shifts.append(SHIFT_WEIGHT * F.smooth_l1_loss(measured, left, beta=SHIFT_BETA))
        losses = {"shift": torch.stack(shifts).mean()} if self.measures_shift else {}
        return DisturbedFeatures(torch.cat(features, dim=1), torch.stack(taught, dim=1), losses)

    def _encode_shifted(
        self, camera: CameraAutoencoder, frames: Tensor, values: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return features of disturbed frames, the measured shift and the one that is there, (n, 2)."""
        n, device, config = len(frames), frames.device, self.config

        def sample(*shape: int) -> Tensor:
            return torch.rand(n, *shape, device=device, generator=generator)

        reach = config.shift if config.anchors else 0
        shift = torch.randint(-reach, reach + 1, (n, 2), device=device, generator=generator)
        shift = shift * (sample(1) < SHIFTED)
        colour = (256 * sample(1, 1, 3)).to(torch.uint8)
        shifted = shift_frames(frames, shift, colour, sample() < 0.5)
        disturbed = camera.level(disturb_frames(shifted, generator))
        left = shift * (sample(1) >= UNDONE)
        keypoints, anchors, _ = camera.find_points(shift_frames(disturbed, left - shift))
        return keypoints.flatten(1), camera.measure_shift(anchors, values), left.to(values.dtype)

    def _camera_losses(
        self,
        camera: CameraAutoencoder,
        frames: Tensor,
        background: Tensor,
        values: Tensor,
        later: Tensor | None,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the losses of one camera, for frames and backgrounds (n, size, size, 3) uint8.

        Args:
            camera: Networks of the camera.
            frames: Frames, before they are shifted.
            background: Background of each frame.
            values: Scaled low-dimensional observations, (n, plain_dim).
            later: Observations `FORESEEN` periods later, not scaled; None to redraw frames instead.
            generator: Source of shifts and noise.
        """
        config, reach, device = self.config, self.config.shift, frames.device
        shift = torch.randint(-reach, reach + 1, (len(frames), 2), device=device, generator=generator)
        losses: dict[str, Tensor] = {}
        if config.anchors:
            keypoints, losses = self._shift_losses(camera, frames, shift, values, generator)
            shift = torch.zeros_like(shift)  # it is undone
        else:
            frames, background = shift_frames(frames, shift), shift_frames(background, shift)
            keypoints, _, _ = camera.find_points(frames)
        moved = shift[:, None] * (2 / config.size)
        noise = torch.randn(keypoints.shape, device=device, generator=generator)
        keypoints = keypoints + config.blur * noise
        if later is not None:
            return {"foresight": self._foresight_loss(camera, keypoints - moved, values, later)}
        known_points = camera.known_points(values) + moved
        points = torch.cat([keypoints, known_points.to(keypoints.dtype)], dim=1)
        redrawn = camera.decoder(points, to_unit_rgb(background))
        losses["redraw"] = (redrawn - to_unit_rgb(frames)).square().sum((1, 2, 3)).mean() / ERROR_UNIT
        return losses

    def _shift_losses(
        self,
        camera: CameraAutoencoder,
        frames: Tensor,
        shift: Tensor,
        values: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the keypoints of frames whose shift was undone, and the losses `shift` and `steadiness`.

        Shifts are (n, 2) in pixels.
        """
        n, device = len(frames), frames.device
        colour = torch.randint(0, 256, (n, 1, 1, 3), device=device, generator=generator)
        is_plain = torch.rand(n, device=device, generator=generator) < 0.5
        shifted = shift_frames(frames, shift, colour.to(torch.uint8), is_plain)
        views = torch.cat([shifted, frames, shift_frames(shifted, -shift)])
        points, anchors, _ = camera.find_points(views)
        _, original, undone = points.chunk(3)
        error = camera.measure_shift(anchors[:n], values) - shift
        change = (undone - original) * (self.config.size / 2)
        steadiness = change.square().sum((1, 2)).mean() / self.config.keypoints
        return undone, {"shift": error.square().sum(-1).mean(), "steadiness": steadiness}

    def _foresight_loss(
        self, camera: CameraAutoencoder, keypoints: Tensor, values: Tensor, later: Tensor
    ) -> Tensor:
        """Return the squared error of later observations, predicted from keypoints and present values."""
        inputs = torch.cat([values, keypoints.flatten(1)], dim=1)
        predicted: Tensor = camera.predict(inputs).view(len(values), len(FORESEEN), -1)
        error = predicted - self.scale(later.view(predicted.shape))
        return error.square().sum((1, 2)).mean()

    def autoencoders(self) -> list[CameraAutoencoder]:
        """Return the networks of each camera."""
        return cast("list[CameraAutoencoder]", [*self.cameras])
