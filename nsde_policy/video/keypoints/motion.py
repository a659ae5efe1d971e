"""Motion of keypoints as a Neural SDE: dx = f(x) dt + g(x) dw for x = (position, velocity) of each keypoint.

f is trained through the solver's steps: five steps of Δt / 5 must add up to what was recorded over Δt, over
several frames. Since f does not depend on time and contacts happen at any time between two recorded frames,
this fixes where each keypoint is between the frames, although only whole frames are recorded.

Keypoints act on each other in pairs, along and across the line that joins them, and the edges of the frame
act on each of them.

Deviation: g = 0, since noise in every step would shake objects that rest, and d is not learned.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from nsde_policy.core.losses import flow_loss
from nsde_policy.core.networks import MLP, linear
from nsde_policy.core.sde import AbstractSDE, Coefficients, euler_maruyama
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.video.keypoints.config import MotionConfig
from nsde_policy.video.keypoints.layers import make_rings, measure_radius

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
        """Return the change of velocity along and across the line, and the share of the step after it.

        Args:
            gap: Distance until contact, (…).
            along: Speed at which the gap grows, per frame, (…).
            across: Speed across the line, (…).
            codes: What meets, (…, codes).
        """
        later = gap + self.step * along
        closing = (-along).clamp(min=0)
        share = (-later / (self.step * closing + 1e-3)).clamp(0, 1)
        features = torch.stack([gap, later, share, along / SPEED_SCALE, across / SPEED_SCALE], dim=-1).tanh()
        push, slide = self.network(torch.cat([features, codes], dim=-1)).float().unbind(-1)
        touch = torch.sigmoid(-later * self.log_sharpness.exp())
        return touch * closing * MOST_PUSH * torch.sigmoid(push), touch * across * slide.tanh(), share


class MotionField(nn.Module):
    """Drift of all keypoints.

    Args:
        config: Settings.
        unit: Length in which distances and velocities are measured, half frames.
        generator: Source of the initial weights.
    """

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
    """Predicts keypoints: estimates position and velocity over the context, then solves the equation.

    Args:
        config: Settings.
        crop: Side of the picture that shapes are read from.
        unit: Usual change of a keypoint over a frame, half frames.
        generator: Source of the initial weights.
    """

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

    @property
    def window(self) -> int:
        """Frames of a training window."""
        return self.config.context + self.config.frames

    def describe(self, rings: Tensor, present: Tensor) -> Bodies:
        """Return what keypoints are, from their rings (n, k, rings) and whether they exist (n, k)."""
        radius = measure_radius(rings, self.ring_areas) / 32 / self.field.unit
        code = torch.cat([self.read_code(rings)[..., 1:], radius[..., None] - 4], dim=-1)
        return Bodies(code, radius + self.read_reach(code)[..., 0], present)

    def loss(self, batch: TrackWindows, generator: torch.Generator) -> LossParts:
        """Return the paper's log loss of predicted keypoints at whole frames.

        It seeks the mode. The square loss asks for the mean, and the mean of bounces at several times is a
        curve that touches nothing.
        """
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
        """Estimate the newest state from keypoints (n, context, k, 2): predict each frame, then correct.

        Prediction carries the velocity through contacts between the frames of the context.
        """
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
    """Return all windows, and those in which two keypoints change their velocity at once; (windows, 2) each.

    Args:
        keypoints: Positions, (videos, frames, k, 2).
        present: Which of them exist, (videos, k).
        length: Frames of a window.
    """
    change = keypoints.diff(n=2, dim=1).norm(dim=-1) * present[:, None]
    least = 0.2 * (keypoints.diff(dim=1).norm(dim=-1) * present[:, None]).square().mean().sqrt()
    meets = change.topk(2, dim=-1).values[..., 1] > least  # (videos, frames - 2)
    inside = meets.unfold(1, length - 2, 1)[..., 1:].any(-1)
    every = torch.ones_like(inside).nonzero()
    return every, inside.nonzero()


def kink(path: Tensor, substeps: int) -> Tensor:
    """Fill the time between states at whole frames with two straight lines that meet.

    Where motion is piecewise linear, a bounce lies where the line from before meets the line from after.

    Args:
        path: States (frames + 1, n, k, 4), position and velocity at whole frames.
        substeps: Steps per frame.

    Returns:
        Positions (frames · substeps + 1, n, k, 2).
    """
    start, end = path[:-1, None], path[1:, None]
    gap = start[..., :2] - end[..., :2] + end[..., 2:]
    turn = start[..., 2:] - end[..., 2:]
    meet = (-(gap * turn).sum(-1) / turn.square().sum(-1).clamp(min=1e-9)).clamp(0, 1)[..., None]
    time = (torch.arange(substeps, device=path.device) / substeps).reshape(1, -1, 1, 1, 1)
    before = start[..., :2] + start[..., 2:] * time
    after = end[..., :2] - end[..., 2:] * (1 - time)
    filled = torch.where(time <= meet, before, after)
    return torch.cat([filled.flatten(0, 1), path[-1:, ..., :2]])
