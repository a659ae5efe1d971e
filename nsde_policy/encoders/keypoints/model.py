"""The keypoint autoencoder of one or more cameras."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nsde_policy.config import NetworkConfig
from nsde_policy.core.networks import MLP, weights_from
from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.base_model import CameraBatch, DisturbedFeatures, EncoderModel, to_unit_rgb
from nsde_policy.encoders.keypoints.config import FORESEEN, KeypointConfig
from nsde_policy.encoders.keypoints.masked import encode_shifted, list_trained
from nsde_policy.encoders.keypoints.networks import FrameDecoder, KeypointNetwork
from nsde_policy.encoders.masking import shift_frames
from nsde_policy.methods.base import LossParts, Stage

ERROR_UNIT = 20.0
"""The squared error of a frame is divided by this number, which makes its gradients about as large as 1."""
SHARPNESS = 8.0
"""Factor on the first heat maps of short trainings: flat ones keep all keypoints in the middle for long."""
POINT_NETWORK = NetworkConfig(width=64, depth=2, dropout=0.0)
"""Network from measured values to positions."""


class CameraAutoencoder(nn.Module):
    """Encoder and decoder of one camera."""

    background: Tensor

    def __init__(self, config: KeypointConfig, plain_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self._keypoints = config.keypoints
        with weights_from(generator):
            self.encoder = KeypointNetwork(keypoints=config.keypoints + config.anchors, width=config.width)
            points, w = config.keypoints + config.known_points, config.width
            self.decoder = FrameDecoder(points=points, width=w, size=config.size, bump=config.bump)
        if config.foresight:  # nothing is redrawn
            del self.decoder
            self.encoder.maps.weight.data *= SHARPNESS
            inputs, outputs = 2 * config.keypoints + plain_dim, len(FORESEEN) * plain_dim
            self.predict = MLP(inputs, outputs, POINT_NETWORK, generator=generator)
        self.locate = _build_locator(plain_dim, config.known_points, generator)
        self.locate_anchors = _build_locator(plain_dim, config.anchors, generator)
        self.anchor_weight = nn.Parameter(torch.zeros(config.anchors)) if config.anchors else None
        self.register_buffer("background", torch.zeros(config.size, config.size, 3, dtype=torch.uint8))

    def find_points(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return keypoints and anchors of frames (n, size, size, 3) uint8, (n, keypoints or anchors, 2).

        Also return the means of the network's maps, (n, summary_dim).
        """
        points, summary = self.encoder(to_unit_rgb(frames))
        return *self.split_points(points), summary

    def split_points(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return keypoints and anchors, which the network finds together, (n, keypoints + anchors, 2)."""
        return points[:, : self._keypoints], points[:, self._keypoints :]

    def measure_shift(self, anchors: Tensor, values: Tensor) -> Tensor:
        """Measure how far the camera is shifted, (n, 2) in units of half a frame.

        It is a weighted mean over the anchors, (n, anchors, 2): where they are in the frames, minus where
        they are usually seen for these values, (n, plain_dim) in [-1, 1]; 0 without anchors.
        """
        if self.anchor_weight is None:
            return values.new_zeros(len(values), 2)
        moved = anchors - _locate(self.locate_anchors, values)
        return (self.anchor_weight.softmax(0)[:, None] * moved).sum(1)

    def known_points(self, values: Tensor) -> Tensor:
        """Return positions in the frame that follow from measured values, (n, known_points, 2)."""
        return _locate(self.locate, values)


def _build_locator(plain_dim: int, points: int, generator: torch.Generator) -> MLP | None:
    """Build the network from measured values to positions in a frame; None for no positions."""
    return MLP(plain_dim, 2 * points, POINT_NETWORK, generator=generator) if points else None


def _locate(network: MLP | None, values: Tensor) -> Tensor:
    """Return positions in the frame for measured values, (n, points, 2)."""
    if network is None:
        return values.new_zeros(len(values), 0, 2)
    points: Tensor = network(values)
    return points.reshape(len(values), -1, 2)


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
        self.cameras = nn.ModuleList(CameraAutoencoder(config, plain_dim, generator) for _ in cameras)

    def stages(self) -> tuple[Stage, ...]:
        """Train all networks at once; with a teacher, train all but the decoder."""
        if self.teacher_std is not None:
            learned = ("features", "shift") if self.config.anchors else ("features",)
            return (Stage(learned, list_trained(self)),)
        losses = ("redraw", "shift", "steadiness") if self.config.anchors else ("redraw",)
        losses = ("foresight",) if self.config.foresight else losses
        return (Stage(losses, tuple(self.parameters())),)

    def set_scene(self, low: Tensor, high: Tensor, backgrounds: Sequence[Tensor]) -> None:
        """Store the range of the measured values, (plain_dim,), and backgrounds (size, size, 3) uint8."""
        self.low.copy_(low)
        self.high.copy_(torch.where(high > low, high, low + 1))
        for camera, background in zip(self.autoencoders(), backgrounds, strict=True):
            camera.background.copy_(background)

    def summarize(self, values: Tensor, *frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keypoints of all cameras, camera by camera, x and y by turns, and the means of maps.

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
            chosen = (frame[rows] for frame in frames)
            steady, _, seen = self.encode_and_measure(values[rows], shift[rows], *chosen)
            features, summary = features.index_copy(0, rows, steady), summary.index_copy(0, rows, seen)
        return features, summary

    def encode_and_measure(
        self, values: Tensor, shift: Tensor | None, *frames: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Encode frames after undoing a shift, (n, cameras, 2) in pixels, and measure their shift then.

        A measured shift beyond those of training is a mistake, and limited to them.
        """
        scaled, reach = self.scale(values), self.config.shift
        features, measured, summaries = [], [], []
        for i, (camera, given) in enumerate(zip(self.autoencoders(), frames, strict=True)):
            level = self.level(camera, given)
            steady = level if shift is None else shift_frames(level, -shift[:, i].long())
            keypoints, anchors, summary = camera.find_points(steady)
            summaries.append(summary)
            features.append(keypoints.flatten(1))
            measured.append(camera.measure_shift(anchors, scaled) * (self.size / 2))
        shifts = torch.stack(measured, dim=1).clamp(-reach, reach)
        return torch.cat(features, dim=1), shifts, torch.cat(summaries, dim=1)

    @property
    def measures_shift(self) -> bool:
        """Whether there are anchors."""
        return self.config.anchors > 0

    def fold_for_export(self) -> nn.Module:
        """Return the module of one row that is exported."""
        from nsde_policy.encoders.keypoints.folded import FoldedKeypoints

        return FoldedKeypoints(self)

    def level(self, camera: CameraAutoencoder, frames: Tensor) -> Tensor:
        """Return the frames with the brightness of the background, if the settings say so."""
        return scale_brightness(frames, camera.background) if self.config.level_brightness else frames

    def scale(self, values: Tensor) -> Tensor:
        """Scale measured values, (n, plain_dim), to [-1, 1]."""
        return 2 * (values - self.low) / (self.high - self.low) - 1

    def loss(self, batch: CameraBatch, generator: torch.Generator) -> LossParts:
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
        for camera, given in zip(self.autoencoders(), batch.frames, strict=True):
            level = self.level(camera, given)
            seen, background = (self.flip(each, flip) for each in (level, camera.background.expand_as(level)))
            parts.append(self._camera_losses(camera, seen, background, values, later, generator))
        return LossParts({name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]})

    def encode_disturbed(
        self, values: Tensor, frames: Sequence[Tensor], generator: torch.Generator
    ) -> DisturbedFeatures:
        """Encode frames that are disturbed and, if they have anchors, also shifted."""
        return encode_shifted(self, self.scale(values), frames, generator)

    def _camera_losses(
        self,
        camera: CameraAutoencoder,
        frames: Tensor,
        background: Tensor,
        values: Tensor,
        later: Tensor | None,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the losses of one camera, for frames and backgrounds (n, size, size, 3) uint8."""
        config, n, device = self.config, len(frames), frames.device
        reach = config.shift
        shift = torch.randint(-reach, reach + 1, (n, 2), device=device, generator=generator)
        losses = {}
        if config.anchors:
            colour = torch.randint(0, 256, (n, 1, 1, 3), device=device, generator=generator)
            plain = torch.rand(n, device=device, generator=generator) < 0.5
            shifted = shift_frames(frames, shift, colour.to(torch.uint8), plain)
            views = torch.cat([shifted, frames, shift_frames(shifted, -shift)])
            points, anchors, _ = camera.find_points(views)
            _, steady, keypoints = points.chunk(3)
            error = camera.measure_shift(anchors[:n], values) * (config.size / 2) - shift
            losses["shift"] = error.square().sum(-1).mean()
            change = (keypoints - steady) * (config.size / 2)
            losses["steadiness"] = change.square().sum((1, 2)).mean() / config.keypoints
            shift = torch.zeros_like(shift)
        else:
            frames, background = shift_frames(frames, shift), shift_frames(background, shift)
            keypoints, _, _ = camera.find_points(frames)
        noise = torch.randn(keypoints.shape, device=device, generator=generator)
        if later is not None:
            steady = keypoints + config.blur * noise - shift[:, None] * (2 / config.size)
            error = camera.predict(torch.cat([values, steady.flatten(1)], dim=1)).view(n, len(FORESEEN), -1)
            error = error - self.scale(later.view(error.shape))
            return {"foresight": error.square().sum((1, 2)).mean()}
        known = camera.known_points(values) + shift[:, None] * (2 / config.size)
        points = torch.cat([keypoints + config.blur * noise, known.to(keypoints.dtype)], dim=1)
        drawn = camera.decoder(points, to_unit_rgb(background))
        losses["redraw"] = (drawn - to_unit_rgb(frames)).square().sum((1, 2, 3)).mean() / ERROR_UNIT
        return losses

    def autoencoders(self) -> list[CameraAutoencoder]:
        """Return the networks of each camera."""
        return [camera for camera in self.cameras if isinstance(camera, CameraAutoencoder)]


def scale_brightness(frames: Tensor, background: Tensor) -> Tensor:
    """Scale each frame (n, h, w, 3) to the median brightness of the background, (h, w, 3), all uint8.

    The median does not depend on where things are, so it is the same for shifted and mirrored frames. A gain
    is at most 4, and at least 1/4.
    """
    gain = _measure_brightness(background[None]).clamp(min=1) / _measure_brightness(frames).clamp(min=1)
    scaled = frames.to(torch.float32) * gain.clamp(0.25, 4.0)[:, None, None, None]
    return scaled.round().clamp(0, 255).to(torch.uint8)


def _measure_brightness(frames: Tensor) -> Tensor:
    """Return the median brightness of each frame (n, h, w, 3), over every fourth row and column."""
    values = frames[:, ::4, ::4].to(torch.float32).mean(-1).flatten(1)
    return values.topk(values.shape[1] // 2, dim=1).values[:, -1]
