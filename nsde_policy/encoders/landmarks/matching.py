"""Find landmarks: small patches that stand elsewhere in the first frame of each episode, and follow them.

The robot begins its episodes alike, so that first frames differ where things are that it will have to look
at. A patch of such a place is compared with all first frames. It is a landmark if one place of each frame is
clearly more similar than all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nsde_policy.data.frames import read_resized
from nsde_policy.data.types import Demonstrations

from .config import LandmarkConfig

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

RADII = (2, 4, 7)
"""Radii of the patches, pixels of the resized frame."""
EXAMPLES = 4
"""First frames whose patches are tried."""
COMPARED = 12
"""Most first frames that patches are compared with to find landmarks."""
PATCHES = 10
"""Most patches of one radius and one frame that are tried, where the frame differs most."""
DIFFERENT, PEAK = 0.06, 0.03
"""Pixels differ from the median of the first frames by at least this much, of 1; and the smoothed difference
of a patch's centre."""
BACKGROUND = 0.02, 0.1
"""How much a pixel counts that does not differ from the median: where a thing is compared alone, and with
what is next to it."""
FORBIDDEN = 9.0
"""Error of a place where no landmark is looked for, above that of all others."""
SIMILAR = 0.7
"""The best match of a patch has at most this fraction of the error of the second best one."""
MATCHED = 0.7
"""A landmark is found in at least this fraction of the first frames."""
STEADY = 0.5
"""What moves less between episodes is no landmark, standard deviation in pixels."""
CLOSE, RIGID = 2.5, 1.0
"""Landmarks are farther apart than `CLOSE` pixels. Two move alike if their distance changes by less than
`RIGID` pixels."""
MOST_OF_ONE = 3
"""Most landmarks of one thing."""
EXPLAINED, SMOOTHING = 0.5, 0.1
"""Fraction of the variance of its places that measured values explain if a patch is a part of the robot, and
the weight of the penalty of that ridge regression."""
LATER = 0.1
"""Fraction of an episode after which a thing is still where it was, but parts of the robot are not."""
REACH = 4
"""Pixels that a landmark moves between two frames at most, to be followed."""
SEEN = 0.2
"""A landmark is seen in at least this fraction of the frames."""
LOST = 0.5
"""A landmark is lost while its error is above this fraction of the second best match's error."""


class Template(NamedTuple):
    """A patch, (1, 3, height, width), or one for each frame, and how much each pixel counts."""

    patch: Tensor
    weight: Tensor
    """Weights of the thing alone, (3, height, width): another background is behind it in another episode."""
    wide_weight: Tensor
    """Weights of the thing and of what is next to it."""

    @property
    def radius(self) -> int:
        """Pixels on each side of the centre."""
        return self.weight.shape[1] // 2

    def compare(self, frames: Tensor) -> Tensor:
        """Return the mean squared error of the patch at all places of frames, (n, 3, h, w) to (n, h', w')."""
        parts = zip(frames.tensor_split(len(self.patch)), self.weight * self.patch, strict=True)
        error = F.conv2d(frames.square(), self.weight[None])
        error -= 2 * torch.cat([F.conv2d(part, patch[None]) for part, patch in parts])
        constant = (self.weight * self.patch.square()).sum((1, 2, 3))
        return (error[:, 0] + constant[:, None, None]).clamp(min=0)

    def cut(self, frames: Tensor, centers: Tensor) -> "Template":
        """Return a template with the patch of each frame, at the centre (column, row) there."""
        r = self.radius
        patches = [
            frame[:, row - r : row + r + 1, column - r : column + r + 1]
            for frame, (column, row) in zip(frames, centers.tolist(), strict=True)
        ]
        return self._replace(patch=torch.stack(patches))

    def widen(self) -> "Template":
        """Return a template that also compares what is next to the thing."""
        return self._replace(weight=self.wide_weight)

    def find_centers(self, places: Tensor, frames: Tensor) -> Tensor:
        """Return the pixels (column, row) nearest to places where patches are within frames."""
        last = torch.tensor([frames.shape[3], frames.shape[2]]) - 1 - self.radius
        return places.round().long().clamp(min=torch.full_like(last, self.radius), max=last)


@dataclass(frozen=True)
class Match:
    """Where a template was found in frames."""

    places: Tensor
    """Best places (x, y) in pixels, (n, 2)."""
    error: Tensor
    """Errors there, (n,)."""
    second: Tensor
    """Smallest errors elsewhere, (n,)."""

    @property
    def is_clear(self) -> Tensor:
        """Whether no other place is nearly as similar, (n,)."""
        return self.error < SIMILAR * self.second


@dataclass(frozen=True)
class Landmark:
    """A template with its matches in the compared first frames."""

    template: Template
    match: Match
    example: int
    """Index of the frame that the patch is from."""

    @property
    def ambiguity(self) -> float:
        """Mean error of the matches, relative to the second best ones."""
        return float((self.match.error / self.match.second.clamp(min=1e-6)).clamp(max=1).mean())

    def moves_like(self, other: "Landmark") -> tuple[float, float]:
        """Return the usual distance to another landmark, and how much it changes, in pixels."""
        apart = self.match.places - other.match.places
        usual = apart.median(0).values
        return float(usual.norm()), float((apart - usual).norm(dim=1).median())


def find_landmarks(episodes: Sequence[Tensor], values: Tensor, most: int) -> list[Landmark]:
    """Find landmarks in the first frames of episodes, each (length, h, w, 3) uint8; the clearest first.

    Places that follow from what is measured in first frames, (n, d), or that are no longer there in later
    ones, are parts of the robot, and no landmarks. Neither is what can hardly be followed.
    """
    if len(episodes) < 2:
        return []
    rows = spread_rows(len(episodes))
    episodes, values = [episodes[row] for row in rows], values[rows]
    first = to_rgb(torch.stack([frames[0] for frames in episodes]))
    later = to_rgb(torch.stack([frames[int(LATER * len(frames))] for frames in episodes]))
    usual = first.median(0).values
    differs = find_differences(first)
    landmarks = []
    for example, frame in enumerate(first[:EXAMPLES]):
        for radius in RADII:
            for template in _cut_patches(frame, usual, radius):
                match = match_template(template, first, differs)
                if match.is_clear.float().mean() < MATCHED:
                    continue
                places = match.places[match.is_clear]
                is_still = places.std(0, correction=0).max() < STEADY
                if is_still or explain(places, values[match.is_clear]) > EXPLAINED:
                    continue
                if is_there(template, match, first, later)[match.is_clear].float().mean() >= MATCHED:
                    landmarks.append(Landmark(template, match, example))
    return [
        landmark
        for landmark in _choose(landmarks, most)
        if (follow(landmark.template, episodes)[1] == 0).float().mean() >= SEEN
    ]


def spread_rows(count: int) -> Tensor:
    """Return at most `COMPARED` indices below a count, evenly spaced."""
    return torch.linspace(0, count - 1, min(count, COMPARED)).round().long()


def is_there(template: Template, match: Match, first: Tensor, later: Tensor) -> Tensor:
    """Return whether what was found in first frames is still near its place in later ones, (n,)."""
    template = template.cut(first, template.find_centers(match.places, first)).widen()
    limit = SIMILAR * match_template(template, first).second
    error = template.compare(later)
    rows, columns = (torch.arange(length) + template.radius for length in error.shape[1:])
    near_row = (rows - match.places[:, 1:]).abs() <= REACH
    near_column = (columns - match.places[:, :1]).abs() <= REACH
    near = near_row[:, :, None] & near_column[:, None, :]
    return error.masked_fill(~near, FORBIDDEN).flatten(1).amin(1) < limit


def explain(places: Tensor, values: Tensor) -> float:
    """Return what fraction of the variance of places (n, 2) values (n, d) explain: ridge, leave one out."""
    centred = places.double() - places.double().mean(0)
    scaled = values.double() - values.double().mean(0)
    scaled = scaled / scaled.std(0).clamp(min=1e-6)
    n, d = scaled.shape
    gram = scaled @ torch.linalg.solve(
        scaled.mT @ scaled + SMOOTHING * torch.eye(d, dtype=torch.float64), scaled.mT
    )
    error = (centred - gram @ centred) / (1 - 1 / n - gram.diagonal()[:, None]).clamp(min=1e-6)
    return 1 - float(error.square().sum() / centred.square().sum())


def find_differences(first: Tensor) -> Tensor:
    """Return where first frames (n, 3, h, w) differ, and next to it, (h, w)."""
    differs = ((first - first.median(0).values).abs() > DIFFERENT).any(0).any(0)
    return F.max_pool2d(differs[None].float(), 3, 1, 1)[0] > 0


def count_landmarks(frames: "LazyFrames", demos: Demonstrations) -> int:
    """Return how many landmarks the frames of the episodes show."""
    usual = LandmarkConfig()
    episodes = spread_rows(len(demos)).numpy()
    starts, ends = demos.starts[episodes], demos.episode_ends[episodes]
    pictures = [
        torch.from_numpy(read_resized(frames, range(start, end), usual.size))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return len(find_landmarks(pictures, torch.from_numpy(demos.obs[starts]), usual.landmarks))


def _cut_patches(frame: Tensor, usual: Tensor, radius: int) -> list[Template]:
    """Return patches where a frame (3, h, w) differs most from what is usual there."""
    difference = (frame - usual).abs().amax(0)[None, None]
    kernel = 3 if radius == RADII[0] else 5
    smooth = F.avg_pool2d(difference, kernel, 1, kernel // 2)
    is_peak = (smooth == F.max_pool2d(smooth, 5, 1, 2)) & (smooth > PEAK)
    inside = F.pad(torch.ones_like(smooth[..., radius:-radius, radius:-radius]), (radius,) * 4) > 0
    rows, columns = torch.where((is_peak & inside)[0, 0])
    order = smooth[0, 0, rows, columns].argsort(descending=True)[:PATCHES]
    differs = (difference > DIFFERENT).float()
    counts = torch.stack([BACKGROUND[0] + differs, BACKGROUND[1] + F.max_pool2d(differs, 3, 1, 1)])[:, 0, 0]
    axis = torch.arange(-radius, radius + 1, device=frame.device) / (0.7 * radius)
    bell = (-0.5 * axis.square()).exp()
    templates = []
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        area = (slice(row - radius, row + radius + 1), slice(column - radius, column + radius + 1))
        weights = counts[(slice(None), *area)] * bell[:, None] * bell
        weights = (weights / (3 * weights.sum((1, 2), keepdim=True)))[:, None].expand(-1, 3, -1, -1)
        templates.append(Template(frame[(slice(None), *area)][None], *weights))
    return templates


def match_template(template: Template, frames: Tensor, allowed: Tensor | None = None) -> Match:
    """Find the two best places of a template in frames, (n, 3, h, w), where they are allowed, (h, w)."""
    error = template.compare(frames)
    if allowed is not None:
        inside = slice(template.radius, -template.radius)
        error = error.masked_fill(~allowed[inside, inside], FORBIDDEN)
    height, width = error.shape[1:]
    best, index = error.flatten(1).min(1)
    row, column = index // width, index % width
    rows, columns = (torch.arange(length, device=error.device) for length in (height, width))
    near_row = (rows - row[:, None]).abs() <= 2
    near_column = (columns - column[:, None]).abs() <= 2
    elsewhere = error.masked_fill(near_row[:, :, None] & near_column[:, None, :], FORBIDDEN)
    places = torch.stack([column, row], -1) + _find_minimum(error, row, column) + template.radius
    return Match(places, best, elsewhere.flatten(1).min(1).values)


def _find_minimum(error: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the minimum (x, y) of a parabola through each smallest error and its neighbours, (n, 2)."""
    padded = F.pad(error[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    n, row, column = torch.arange(len(error), device=error.device), row + 1, column + 1
    middle = padded[n, row, column]
    offsets = []
    for before, after in (
        (padded[n, row, column - 1], padded[n, row, column + 1]),
        (padded[n, row - 1, column], padded[n, row + 1, column]),
    ):
        curvature = (before - 2 * middle + after).clamp(min=1e-6)
        offsets.append(((before - after) / (2 * curvature)).clamp(-0.5, 0.5))
    return torch.stack(offsets, -1)


def _choose(landmarks: Sequence[Landmark], most: int) -> list[Landmark]:
    """Choose the clearest landmarks of each thing, in turns, until there are enough.

    A thing is what several patches of different frames found: these move alike between episodes.
    """
    things: list[list[Landmark]] = []
    for landmark in sorted(landmarks, key=lambda each: each.ambiguity):
        thing = next((each for each in things if landmark.moves_like(each[0])[1] < RIGID), None)
        if thing is None:
            things.append([landmark])
        else:
            thing.append(landmark)
    apart: list[Landmark] = []
    queues = [thing for thing in things if len({each.example for each in thing}) > 1]
    for _ in range(MOST_OF_ONE):
        for thing in queues:
            free = [each for each in thing if all(each.moves_like(other)[0] > CLOSE for other in apart)]
            if free and len(apart) < most:
                apart.append(free[0])
    return apart


def follow(template: Template, episodes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Follow a template through episodes, each frames (length, h, w, 3) uint8, from its first frame.

    It is compared with what the first frame of the same episode shows: alone, since it moves to other
    backgrounds, and with what is next to it, since parts of the robot may look like it.

    Returns its places (x, y) in pixels, (frames, 2), and how many frames ago it was seen, (frames,): infinite
    in episodes where it is not clear. While it is hidden, its place stays, and it is found again near that
    place only.
    """
    first = to_rgb(torch.stack([frames[0] for frames in episodes]))
    start = match_template(template, first, find_differences(first))
    center = template.find_centers(start.places, first)
    offset = start.places - center
    template = template.cut(first, center)
    templates = [template, template.widen()]
    limits = [LOST * match_template(each, first).second for each in templates]
    reach = template.radius + REACH
    size = 2 * reach + 1
    last_corner = torch.tensor([first.shape[3] - size, first.shape[2] - size])
    place = start.places.clone()
    age = torch.where(start.is_clear, 0.0, torch.inf)
    places = [torch.zeros(len(frames), 2) for frames in episodes]
    ages = [torch.zeros(len(frames)) for frames in episodes]
    for step in range(max(map(len, episodes))):
        going = [i for i, frames in enumerate(episodes) if step < len(frames)]
        corner = ((place - offset)[going].round().long() - reach).clamp(
            min=torch.zeros_like(last_corner), max=last_corner
        )
        windows = [
            episodes[i][step, row : row + size, column : column + size]
            for i, (column, row) in zip(going, corner.tolist(), strict=True)
        ]
        shown = to_rgb(torch.stack(windows))
        is_seen = torch.zeros(len(going), dtype=torch.bool)
        for each, limit in zip(templates, limits, strict=True):
            match = match_template(each._replace(patch=each.patch[going]), shown)
            is_similar = start.is_clear[going] & (match.error < limit[going])
            there = match.places + corner + offset[going]
            place[going] = torch.where(is_similar[:, None], there, place[going])
            is_seen |= is_similar
        age[going] = torch.where(is_seen, 0.0, age[going] + 1)
        for i in going:
            places[i][step], ages[i][step] = place[i], age[i]
    return torch.cat(places), torch.cat(ages)


def to_rgb(frames: Tensor) -> Tensor:
    """Convert frames (n, h, w, 3) uint8 to (n, 3, h, w) from 0 to 1."""
    return frames.permute(0, 3, 1, 2).float() / 255
