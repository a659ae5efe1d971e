"""Keypoints of `collisions` and their motion, for benchmarks/video_superres.py.

Half-way between two frames in pixels is a ghost of both; half-way between two positions is a position.

Layers: a network assigns every pixel to a layer or to the background. A layer's keypoint is the centroid of
its pixels. A frame is redrawn from another one of the video by moving each layer with its keypoint, and the
error of the drawing is the training signal. Layers do not turn.

Motion: a Neural SDE for x = (position, velocity) of each keypoint. f is trained through the solver's steps:
five steps of Δt / 5 must add up to the recorded change over Δt. Contacts happen at any time between two
frames, so this also fixes the motion in between.

Deviation: g = 0, since noise in every step would shake objects that rest, and d is not learned.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from nsde_policy.config import TrainConfig
from nsde_policy.core.losses import flow_loss
from nsde_policy.core.networks import MLP, linear, weights_from
from nsde_policy.core.sde import AbstractSDE, Coefficients, euler_maruyama
from nsde_policy.encoders.keypoints.networks import make_axis
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.training.loop import fit
from nsde_policy.video.base import VideoBatch
from nsde_policy.video.pixels import RGB_CHANNELS, to_unit

LAYER_TRAINING = TrainConfig(
    steps=3000, batch_size=128, learning_rate=3e-3, weight_decay=1e-4, betas=(0.9, 0.98), ema=0.995,
    precision="bf16",
)  # fmt: skip
MOTION_TRAINING = TrainConfig(
    steps=4000, batch_size=1024, learning_rate=5e-3, weight_decay=1e-4, betas=(0.9, 0.98), ema=0.99
)


@dataclass(frozen=True)
class LayerConfig:
    """Settings of the layers that a frame is cut into; lengths in pixels of a frame of 64."""

    layers: int = 16  # beside the background; each holds one moving object, found by its colours
    width: int = 32
    sharpness: float = 0.2  # weight of Σ m (1 - m) over the shares m of a pixel's layers
    crop: int = 20  # side of the picture around a keypoint that a layer's shape is read from
    fewest_pixels: float = 12.0  # a layer with less content is empty
    train: TrainConfig = LAYER_TRAINING


@dataclass(frozen=True)
class MotionConfig:
    """Settings of the Neural SDE of keypoints; the unit is a keypoint's usual change over a frame."""

    context: int = 3  # frames of a training window from which position and velocity are estimated
    substeps: int = 5  # solver steps per frame
    frames: int = 2  # frames that are predicted without correction in training
    neighbours: int = 2  # nearest other keypoints that act on a keypoint
    code: int = 4  # size of the code of a layer's shape
    width: int = 48
    depth: int = 2
    noise: float = 0.02  # on recorded keypoints in training, units
    delta: float = 1e-2  # δ of the log loss, squared units
    encounters: float = 2.0  # windows to add in which two keypoints meet, as a share of all windows
    train: TrainConfig = MOTION_TRAINING


REDRAW_UNIT = 20.0
"""The squared error of a frame is divided by this number, which makes its gradients about as large as 1."""

SCORE_LIMIT = 4.0
"""Limit on the scores of a pixel's layers: without it an empty layer gets no gradient, and two objects that
share a layer early in training stay together."""


class FrameLayers(NamedTuple):
    """Layers of a batch of n frames."""

    masks: Tensor
    """Share of each layer in each pixel, (n, layers, size, size)."""
    keypoints: Tensor
    """Centroids (x, y) in [-1, 1], (n, layers, 2)."""
    present: Tensor
    """1 for layers with content, 0 for empty ones, (n, layers)."""
    rings: Tensor
    """Share of each ring around its keypoint that a layer covers, (n, layers, rings)."""


class LayerAutoencoder(TrainableModel[VideoBatch]):
    """Cuts frames into layers and redraws them."""

    background: Tensor
    ring_weights: Tensor

    def __init__(self, config: LayerConfig, *, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config, self.size = config, size
        w = config.width
        with weights_from(generator):
            self.network = nn.Sequential(
                nn.Conv2d(RGB_CHANNELS, w, 3, 1, 1), nn.SiLU(), nn.Conv2d(w, w, 3, 1, 1), nn.SiLU()
            )
            self.assign = nn.Conv2d(w, config.layers + 1, 1)
        self.register_buffer("background", torch.zeros(RGB_CHANNELS, size, size))
        weights = make_rings(config.crop)
        self.register_buffer("ring_weights", weights / weights.sum(0), persistent=False)

    def measure_background(self, frames: Tensor) -> None:
        """Set the background to the median of frames (n, size, size, 3) uint8, pixel by pixel."""
        self.background.copy_(to_unit(frames).median(dim=0).values)

    def stages(self) -> tuple[Stage, ...]:
        """Train everything at once."""
        return (Stage(("redraw", "sharpness"), tuple(self.parameters())),)

    def loss(self, batch: VideoBatch, generator: torch.Generator) -> LossParts:
        """Return the error of frames redrawn from other ones, and how much pixels are shared by layers."""
        n, length = batch.frames.shape[:2]
        device = batch.frames.device
        start = torch.randint(length, (n, 1), generator=generator, device=device)
        other = (start + torch.randint(1, length, (n, 1), generator=generator, device=device)) % length
        rows = torch.arange(n, device=device)[:, None]
        first, last = (to_unit(batch.frames[rows, each][:, 0]) for each in (start, other))
        masks = self._find_masks(torch.cat([first, last]))
        with torch.autocast(masks.device.type, enabled=False):  # positions need more than bf16
            difference = torch.cat([first, last]) - self.background
            shown = difference.norm(dim=1, keepdim=True)
            points = _find_centroids(masks[:, :-1] * shown)
            drawn = self.draw(self.separate(first, masks[:n, :-1]), points[n:] - points[:n])
        redraw = (drawn - last).square().sum((1, 2, 3)).mean() / REDRAW_UNIT
        mixed = (masks[:n] * (1 - masks[:n])).sum(1)
        sharpness = (mixed * shown[:n, 0]).sum((1, 2)).mean() / REDRAW_UNIT
        return LossParts({"redraw": redraw, "sharpness": self.config.sharpness * sharpness})

    def _find_masks(self, frames: Tensor) -> Tensor:
        """Return the share of each layer in each pixel, the background last, (n, layers + 1, size, size)."""
        features = self.network(frames)
        with torch.autocast(features.device.type, enabled=False):  # positions need more than bf16
            scores = self.assign(features.float())
            masks: Tensor = (SCORE_LIMIT * (scores / SCORE_LIMIT).tanh()).softmax(1)
        return masks

    @torch.no_grad()
    def cut(self, frames: Tensor) -> FrameLayers:
        """Cut frames (n, 3, size, size) with values from -1 to 1 into layers."""
        masks = self._find_masks(frames)[:, :-1]
        difference = frames - self.background
        shown = masks * difference.norm(dim=1, keepdim=True)
        keypoints = _find_centroids(shown)
        cover = shown / shown.amax((2, 3), keepdim=True).clamp(min=0.1)
        pixels = cover.sum((2, 3)) * (64 / self.size) ** 2
        return FrameLayers(
            masks,
            keypoints,
            (pixels > self.config.fewest_pixels).float(),
            self._crop(cover, keypoints).flatten(2) @ self.ring_weights,
        )

    def _crop(self, cover: Tensor, keypoints: Tensor) -> Tensor:
        """Return a picture of each layer (n, k, size, size) around its keypoint, (n, k, crop, crop)."""
        side = self.config.crop
        offset = make_axis(side, keypoints) * (side / 64)
        rows, columns = (
            _interpolation_matrix(keypoints[..., axis, None] + offset, self.size) for axis in (1, 0)
        )
        return rows @ cover @ columns.mT

    def separate(self, frames: Tensor, masks: Tensor) -> Tensor:
        """Return the difference of frames from the background in each layer, (n, layers, 3, size, size)."""
        return masks[:, :, None] * (frames - self.background)[:, None]

    def draw(self, content: Tensor, moved: Tensor) -> Tensor:
        """Draw layers (n, k, 3, size, size) moved by (n, k, 2) half frames; returns (n, 3, size, size)."""
        axis = make_axis(self.size, moved)
        rows, columns = (_interpolation_matrix(axis - moved[..., i, None], self.size) for i in (1, 0))
        shifted = rows[:, :, None] @ content @ columns[:, :, None].mT
        return self.background + shifted.sum(1)


def _find_centroids(masks: Tensor) -> Tensor:
    """Return the centroid (x, y) of each mask (n, k, size, size), (n, k, 2) in [-1, 1]."""
    axis = make_axis(masks.shape[-1], masks)
    moments = torch.stack([(masks.sum(2) * axis).sum(-1), (masks.sum(3) * axis).sum(-1)], dim=-1)
    return moments / (masks.sum((2, 3))[..., None] + 1e-3)


def _interpolation_matrix(places: Tensor, size: int) -> Tensor:
    """Return the matrix that reads a row of `size` pixels at places (…, m) in [-1, 1], (…, m, size)."""
    pixel = (places + 1) * (size / 2) - 0.5
    return (1 - (pixel[..., None] - torch.arange(size, device=places.device)).abs()).clamp(min=0)


def make_rings(side: int) -> Tensor:
    """Return the share of each pixel of a square picture in each ring around its centre, (side², rings).

    Rings are one pixel apart and blend into each other. What they hold does not change when an object turns.
    """
    offset = torch.arange(side) - (side - 1) / 2
    radius = (offset.square() + offset.square()[:, None]).sqrt().flatten()
    return (1 - (radius[:, None] - torch.arange(math.ceil(float(radius.max())) + 1)).abs()).clamp(min=0)


ABSENT_DISTANCE = 1e3
"""Distance of keypoints that do not exist, in half frames."""
SHARPNESS = 6.0
"""Initial sharpness of contacts: a push sets in over about a sixth of the unit of length."""
MOST_PUSH = 3.0
"""Largest change of velocity along the line, in units of the closing speed; an edge gives 2, a heavy disc
gives a light one up to 2."""
SPEED_SCALE = 4.0
"""Speed at which features of the speed level off, in units of length per frame."""
PUSH_FEATURES = 5
"""Numbers that describe an encounter, beside the codes."""


class Bodies(NamedTuple):
    """What the keypoints of n videos are; constant over a video."""

    codes: Tensor
    """Codes of their shapes, (n, k, code)."""
    reach: Tensor
    """Distance at which they touch an edge, in units of length, (n, k)."""
    present: Tensor
    """1 for keypoints that exist, else 0, (n, k)."""


class Encounter(nn.Module):
    """Push between two keypoints, or between a keypoint and an edge, over one solver step.

    A push needs contact: the gap, at the present speed, closes before the step ends. It acts for the rest of
    the step and is proportional to the speed; a network learns by how much. It is bounded, so that a path of
    many steps stays finite whatever the weights are.
    """

    def __init__(
        self, codes: int, *, step: float, width: int, depth: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.step = step
        self.network = MLP(
            PUSH_FEATURES + codes, 2, width=width, depth=depth, layer_norm=False, activation="silu",
            generator=generator,
        )  # fmt: skip
        for parameter in self.network.output.parameters():
            nn.init.zeros_(parameter)
        self.log_sharpness = nn.Parameter(torch.tensor(SHARPNESS).log())

    def forward(
        self, gap: Tensor, along: Tensor, across: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the change of velocity along and across the line, and the share of the step after it."""
        later = gap + self.step * along
        closing = (-along).clamp(min=0)
        share = (-later / (self.step * closing + 1e-3)).clamp(0, 1)
        features = torch.stack([gap, later, share, along / SPEED_SCALE, across / SPEED_SCALE], dim=-1).tanh()
        push, slide = self.network(torch.cat([features, codes], dim=-1)).float().unbind(-1)
        touch = torch.sigmoid(-later * self.log_sharpness.exp())
        return touch * closing * MOST_PUSH * torch.sigmoid(push), touch * across * slide.tanh(), share


class MotionField(nn.Module):
    """Drift of all keypoints; distances and velocities are measured in `unit` half frames."""

    unit: Tensor

    def __init__(self, config: MotionConfig, *, unit: float, generator: torch.Generator) -> None:
        super().__init__()
        self.step, self.neighbours = 1 / config.substeps, config.neighbours
        size = {"step": self.step, "width": config.width, "depth": config.depth, "generator": generator}
        self.pair = Encounter(2 * config.code, **size)  # type: ignore[arg-type]
        self.edge = Encounter(config.code, **size)  # type: ignore[arg-type]
        self.register_buffer("unit", torch.tensor(float(unit)))

    def forward(self, position: Tensor, velocity: Tensor, bodies: Bodies) -> tuple[Tensor, Tensor]:
        """Return f for positions (n, k, 2) in [-1, 1] and velocities per frame: two tensors of that shape."""
        place, speed = position / self.unit, velocity / self.unit
        pair_push, pair_move = self._push_by_neighbours(place, speed, bodies)
        edge_push, edge_move = self._push_by_edges(place, speed, bodies)
        scale = self.unit * bodies.present[..., None]
        return velocity + (pair_move + edge_move) * scale, (pair_push + edge_push) * scale / self.step

    def _push_by_neighbours(self, place: Tensor, speed: Tensor, bodies: Bodies) -> tuple[Tensor, Tensor]:
        """Return the change of velocity, and its share of this step, by the nearest other keypoints."""
        count = place.shape[-2]
        difference = place[:, :, None] - place[:, None]
        apart = difference.detach().square().sum(-1)
        own = torch.eye(count, device=place.device)
        apart = apart + ABSENT_DISTANCE**2 * (1 - bodies.present[:, None] + own)
        near = apart.topk(min(self.neighbours, count - 1), largest=False).indices

        def select(values: Tensor) -> Tensor:
            """Return the values (n, k, d) of the near keypoints, (n, k, near, d)."""
            flat = values.gather(1, near.flatten(1)[..., None].expand(-1, -1, values.shape[-1]))
            return flat.reshape(*near.shape, values.shape[-1])

        both = torch.cat([place, speed, bodies.codes, bodies.reach[..., None], bodies.present[..., None]], -1)
        other, own = select(both), both[:, :, None]
        between, relative = own[..., :2] - other[..., :2], own[..., 2:4] - other[..., 2:4]
        distance = (between.square().sum(-1) + 1e-6).sqrt()
        normal = between / distance[..., None]
        tangent = torch.stack([-normal[..., 1], normal[..., 0]], dim=-1)
        codes = torch.cat([own[..., 4:-2].expand_as(other[..., 4:-2]), other[..., 4:-2]], dim=-1)
        push, slide, share = self.pair(
            distance - own[..., -2] - other[..., -2],
            (relative * normal).sum(-1),
            (relative * tangent).sum(-1),
            codes,
        )
        change = (push[..., None] * normal + slide[..., None] * tangent) * other[..., -1:]
        return change.sum(2), (share[..., None] * change).sum(2)

    def _push_by_edges(self, place: Tensor, speed: Tensor, bodies: Bodies) -> tuple[Tensor, Tensor]:
        """Return the change of velocity, and its share of this step, by the nearest edge of each axis."""
        side = 1 - 2 * (place < 0).to(place.dtype)
        gap = 1 / self.unit - place * side - bodies.reach[..., None]
        codes = bodies.codes[:, :, None].expand(-1, -1, 2, -1)
        push, _, share = self.edge(gap, -side * speed, speed.flip(-1), codes)
        return -side * push, -side * push * share


class MotionSDE(AbstractSDE):
    """The equation of the keypoints of given videos; x is (n, k, 4): position and velocity."""

    def __init__(self, field: MotionField, bodies: Bodies) -> None:
        super().__init__()
        self.field, self.bodies = field, bodies

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return f(x) and g(x)."""
        drift = torch.cat(self.field(x[..., :2], x[..., 2:], self.bodies), dim=-1)
        return Coefficients(drift, torch.zeros_like(drift))


@dataclass(frozen=True)
class TrackWindows:
    """Windows of keypoints over time, drawn from whole videos."""

    keypoints: Tensor
    """Positions over each video, (videos, length, k, 2)."""
    present: Tensor
    """Which of them exist, (videos, k)."""
    rings: Tensor
    """How much of the rings around them they cover, (videos, k, rings)."""
    rows: Tensor
    """Video and first frame of each window, (windows, 2)."""
    length: int
    """Frames of each window of a batch."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> Self:
        video, start = self.rows[index].unbind(1)
        frames = start[:, None] + torch.arange(self.length, device=start.device)
        rows = torch.stack([torch.arange(len(index), device=start.device), torch.zeros_like(start)], dim=1)
        return type(self)(
            self.keypoints[video[:, None], frames], self.present[video], self.rings[video], rows, self.length
        )

    def to(self, device: torch.device | str) -> Self:
        """Copy all videos to a device."""
        return type(self)(
            self.keypoints.to(device),
            self.present.to(device),
            self.rings.to(device),
            self.rows.to(device),
            self.length,
        )


class KeypointMotion(TrainableModel[TrackWindows]):
    """Predicts keypoints: estimates position and velocity over the context, then solves the equation."""

    ring_areas: Tensor

    def __init__(self, config: MotionConfig, *, crop: int, unit: float, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.field = MotionField(config, unit=unit, generator=generator)
        self.register_buffer("ring_areas", make_rings(crop).sum(0), persistent=False)
        self.read_code = MLP(
            len(self.ring_areas), config.code, width=config.width, depth=2, generator=generator
        )
        self.read_reach = linear(config.code, 1, generator)
        for parameter in self.read_reach.parameters():
            nn.init.zeros_(parameter)
        self.gain = nn.Parameter(torch.tensor(2.0))

    def stages(self) -> tuple[Stage, ...]:
        """Train everything at once."""
        return (Stage(("position",), tuple(self.parameters())),)

    def describe(self, rings: Tensor, present: Tensor) -> Bodies:
        """Return what keypoints are, from their rings (n, k, rings) and whether they exist (n, k)."""
        radius = ((rings * self.ring_areas).sum(-1) / math.pi).sqrt() / 32 / self.field.unit  # of a disc
        code = torch.cat([self.read_code(rings)[..., 1:], radius[..., None] - 4], dim=-1)
        return Bodies(code, radius + self.read_reach(code)[..., 0], present)

    def loss(self, batch: TrackWindows, generator: torch.Generator) -> LossParts:
        """Return the paper's log loss at whole frames: the mean of bounces at several times never touches."""
        config, unit = self.config, self.field.unit
        device, seen = batch.keypoints.device, config.context
        noise = torch.randn(batch.keypoints.shape, generator=generator, device=device)
        noisy = batch.keypoints + config.noise * unit * noise
        bodies = self.describe(batch.rings, batch.present)
        predicted = []
        x = join_motion(noisy[:, 0], noisy[:, 1])
        for k in range(1, seen + config.frames - 1):
            x = self.solve(x, bodies, 1)[-1]
            predicted.append(x[..., :2])
            if k + 1 < seen:
                x = self._correct(x, noisy[:, k + 1])
        there = batch.present[:, None, :, None]
        found, true = torch.stack(predicted[1:], dim=1) / unit, batch.keypoints[:, 3:] / unit
        return LossParts({"position": flow_loss(found, true, delta=config.delta, weight=there)})

    def estimate(self, keypoints: Tensor, bodies: Bodies) -> Tensor:
        """Estimate the newest state from keypoints (n, context, k, 2): predict each frame, then correct."""
        x = join_motion(keypoints[:, 0], keypoints[:, 1])
        for k in range(2, keypoints.shape[1]):
            x = self._correct(self.solve(x, bodies, 1)[-1], keypoints[:, k])
        return x

    def _correct(self, x: Tensor, seen: Tensor) -> Tensor:
        """Return the state with seen positions, and a velocity that is changed by a share of the error."""
        return torch.cat([seen, x[..., 2:] + torch.sigmoid(self.gain) * (seen - x[..., :2])], dim=-1)

    def solve(self, x: Tensor, bodies: Bodies, frames: int) -> Tensor:
        """Solve the equation from states (n, k, 4), (frames · substeps + 1, n, k, 4)."""
        steps = frames * self.config.substeps
        noise = torch.zeros((), device=x.device).expand(steps, *x.shape)
        return euler_maruyama(MotionSDE(self.field, bodies), x, dt=self.field.step, steps=steps, noise=noise)


def join_motion(before: Tensor, now: Tensor) -> Tensor:
    """Return states (…, 4) from positions (…, 2) of two successive frames."""
    return torch.cat([now, now - before], dim=-1)


def find_encounters(keypoints: Tensor, present: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return all windows, and those in which two keypoints change their velocity at once, (windows, 2)."""
    change = keypoints.diff(n=2, dim=1).norm(dim=-1) * present[:, None]
    least = 0.2 * (keypoints.diff(dim=1).norm(dim=-1) * present[:, None]).square().mean().sqrt()
    meets = change.topk(2, dim=-1).values[..., 1] > least  # (videos, frames - 2)
    inside = meets.unfold(1, length - 2, 1)[..., 1:].any(-1)
    every = torch.ones_like(inside).nonzero()
    return every, inside.nonzero()


CUT_BATCH = 512
"""Frames that are cut into layers at once."""
MEDIAN_FRAMES = 512
"""Frames whose median is the background."""


class KeypointVideo:
    """Predicts videos: cuts the newest frame into layers and moves them."""

    def __init__(self, layers: LayerAutoencoder, motion: KeypointMotion) -> None:
        self.layers, self.motion = layers.eval(), motion.eval()

    @torch.no_grad()
    def generate(self, frames: Tensor, *, steps: int) -> Tensor:
        """Predict frames at every solver step after the context, (n, steps · substeps, 3, size, size)."""
        n, context = frames.shape[:2]
        seen = to_unit(frames)
        cut = (part.reshape(n, context, *part.shape[1:]) for part in self.layers.cut(seen.flatten(0, 1)))
        masks, keypoints, present, rings = cut
        bodies = self.motion.describe(rings.mean(1), present[:, -1])
        path = self.motion.solve(self.motion.estimate(keypoints, bodies), bodies, steps)
        content = self.layers.separate(seen[:, -1], masks[:, -1])
        moved = (path[1:, ..., :2] - keypoints[:, -1]) * bodies.present[..., None]
        return torch.stack([self.layers.draw(content, each).clamp(-1, 1) for each in moved], dim=1)


def train_layers(frames: Tensor, config: LayerConfig, *, seed: int) -> LayerAutoencoder:
    """Train layers on videos (videos, length, size, size, 3) uint8, on their device."""
    layers = LayerAutoencoder(config, size=frames.shape[2], generator=torch.Generator().manual_seed(seed))
    layers.to(frames.device).measure_background(frames[:MEDIAN_FRAMES, 0])
    fit(layers, VideoBatch(frames), config.train, seed=seed)
    return layers


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


def train_motion(tracks: TrackWindows, config: MotionConfig, *, crop: int, seed: int) -> KeypointMotion:
    """Train the motion of keypoints on their device."""
    moved = tracks.keypoints.diff(dim=1).square().sum(-1) * tracks.present[:, None]
    unit = float((moved.sum() / (tracks.present.sum() * moved.shape[1])).sqrt())
    motion = KeypointMotion(config, crop=crop, unit=unit, generator=torch.Generator().manual_seed(seed)).to(
        tracks.keypoints.device
    )
    fit(motion, tracks, config.train, seed=seed)
    return motion
