"""Find landmarks: small patches that stand elsewhere in the first frame of each episode, and follow them.

The robot begins its episodes alike, so that first frames differ where things are that it will have to look
at. A patch of such a place is compared with all first frames. It is a landmark if one place of each frame is
clearly more similar than all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """Weights of the thing alone, (1, height, width): another background is behind it in another episode."""
    wide_weight: Tensor
    """Weights of the thing and of what is next to it."""

    @property
    def radius(self) -> int:
        """Pixels on each side of the centre."""
        return self.weight.shape[1] // 2

    def cut(self, frames: Tensor, places: Tensor) -> "tuple[Template, Tensor]":
        """Return a template with the patch at a place of each frame, and the pixels (column, row) there."""
        patch, center = cut_squares(frames, places, self.radius)
        return self._replace(patch=patch), center

    def widen(self) -> "Template":
        """Return a template that also compares what is next to the thing."""
        return self._replace(weight=self.wide_weight)


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
    first = torch.stack([frames[0] for frames in episodes])
    later = torch.stack([frames[int(LATER * len(frames))] for frames in episodes])
    rgb = to_rgb(first)
    usual, differs = rgb.median(0).values, find_differences(rgb)
    landmarks = []
    for radius in RADII:
        patches = [
            (example, template)
            for example, frame in enumerate(rgb[:EXAMPLES])
            for template in _cut_patches(frame, usual, radius)
        ]
        matches = match_templates([template for _, template in patches], rgb, differs)
        candidates = [
            Landmark(template, match, example)
            for (example, template), match in zip(patches, matches, strict=True)
            if varies_freely(match, values)
        ]
        landmarks += select_staying(candidates, first, later)
    return [
        landmark
        for landmark in _choose(landmarks, most)
        if (follow(landmark.template, episodes)[1] == 0).float().mean() >= SEEN
    ]


def spread_rows(count: int) -> Tensor:
    """Return at most `COMPARED` indices below a count, evenly spaced."""
    return torch.linspace(0, count - 1, min(count, COMPARED)).round().long()


def varies_freely(match: Match, values: Tensor) -> bool:
    """Return whether most matches are clear, and their places vary in a way that values do not explain."""
    if match.is_clear.float().mean() < MATCHED:
        return False
    places = match.places[match.is_clear]
    is_still = bool(places.std(0, correction=0).max() < STEADY)
    return not (is_still or explain(places, values[match.is_clear]) > EXPLAINED)


def select_staying(landmarks: Sequence[Landmark], first: Tensor, later: Tensor) -> list[Landmark]:
    """Return the landmarks, all of one radius, that are still near their places in later frames."""
    templates = [each.template.cut(first, each.match.places)[0].widen() for each in landmarks]
    matches = match_templates(templates, to_rgb(first))
    staying = []
    for landmark, template, match in zip(landmarks, templates, matches, strict=True):
        error = search_near([template], later, landmark.match.places)[0].error
        is_there = error < SIMILAR * match.second
        if is_there[landmark.match.is_clear].float().mean() >= MATCHED:
            staying.append(landmark)
    return staying


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
        weights = (weights / (3 * weights.sum((1, 2), keepdim=True)))[:, None]
        templates.append(Template(frame[(slice(None), *area)][None], *weights))
    return templates


def compare(templates: Sequence[Template], frames: Tensor) -> Tensor:
    """Return the mean squared errors of templates of one radius at all places of frames, (k, n, h', w').

    All are computed in one convolution: w (x - p)² = w x² - 2 w p x + w p².
    """
    patches = torch.stack([each.patch for each in templates], 1)
    weights = torch.stack([each.weight for each in templates])
    kernels = torch.cat([weights.expand_as(patches[:, :, :1]), -2 * weights * patches], 2).flatten(0, 1)
    constants = (weights * patches.square()).sum((2, 3, 4)).flatten()
    shown = torch.cat([frames.square().sum(1, keepdim=True), frames], 1)
    groups = len(patches)  # one, or one for each frame, which is then compared with its own patches
    shown = shown.view(-1, groups * shown.shape[1], *shown.shape[2:])
    error = F.conv2d(shown, kernels, constants, groups=groups).clamp_(min=0)
    return error.view(len(frames), len(templates), *error.shape[2:]).transpose(0, 1)


def match_templates(
    templates: Sequence[Template], frames: Tensor, allowed: Tensor | None = None
) -> list[Match]:
    """Find the two best places of templates of one radius in frames, (n, 3, h, w), where allowed, (h, w)."""
    if not templates:
        return []
    radius, error = templates[0].radius, compare(templates, frames)
    if allowed is not None:
        inside = slice(radius, -radius)
        error.masked_fill_(~allowed[inside, inside], FORBIDDEN)
    height, width = error.shape[2:]
    best, index = error.flatten(2).min(2)
    row, column = index // width, index % width
    places = torch.stack([column, row], -1) + _find_minimum(error, row, column) + radius
    rows, columns = (torch.arange(length, device=error.device) for length in (height, width))
    near_row = (rows - row[..., None]).abs() <= 2
    near_column = (columns - column[..., None]).abs() <= 2
    error.masked_fill_(near_row[..., :, None] & near_column[..., None, :], FORBIDDEN)
    return [Match(*each) for each in zip(places, best, error.flatten(2).amin(2), strict=True)]


def search_near(templates: Sequence[Template], frames: Tensor, places: Tensor) -> list[Match]:
    """Find the best places of templates of one radius within `REACH` of places (n, 2) in frames."""
    reach = templates[0].radius + REACH
    squares, centers = cut_squares(frames, places, reach)
    matches = match_templates(templates, squares)
    return [replace(match, places=match.places + centers - reach) for match in matches]


def cut_squares(frames: Tensor, places: Tensor, radius: int) -> tuple[Tensor, Tensor]:
    """Cut a square out of each frame, (n, h, w, 3) uint8 to (n, 3, size, size) from 0 to 1.

    Its centre is the pixel nearest to a place where it is within the frame. Also return these pixels
    (column, row), (n, 2).
    """
    size = 2 * radius + 1
    squares = frames.unfold(1, size, 1).unfold(2, size, 1)
    last = torch.tensor([squares.shape[2], squares.shape[1]]) - 1
    corners = (places.round().long() - radius).clamp(min=0).minimum(last)
    return squares[torch.arange(len(frames)), corners[:, 1], corners[:, 0]].float() / 255, corners + radius


def _find_minimum(error: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the minimum (x, y) of a parabola through each smallest error and its neighbours, (k, n, 2)."""
    padded = F.pad(error, (1, 1, 1, 1), mode="replicate")
    width = padded.shape[3]
    middle = ((row + 1) * width + column + 1)[..., None]
    step = torch.tensor([1, width], device=error.device)
    before, at, after = (padded.flatten(2).gather(2, middle + k * step) for k in (-1, 0, 1))
    curvature = (before - 2 * at + after).clamp(min=1e-6)
    return ((before - after) / (2 * curvature)).clamp(-0.5, 0.5)


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
    first = torch.stack([frames[0] for frames in episodes])
    rgb = to_rgb(first)
    (start,) = match_templates([template], rgb, find_differences(rgb))
    template, center = template.cut(first, start.places)
    templates = [template, template.widen()]
    limits = [LOST * match.second * start.is_clear for match in match_templates(templates, rgb)]
    lengths = torch.tensor([len(frames) for frames in episodes])
    is_frame = torch.arange(int(lengths.max())) < lengths[:, None]
    place, age = center.float(), torch.where(start.is_clear, 0.0, torch.inf)
    places, ages = torch.zeros(*is_frame.shape, 2), torch.zeros(is_frame.shape)
    for step, going in enumerate(is_frame.T):
        frames = torch.stack([each[step] for each in episodes if step < len(each)])
        parts = [each._replace(patch=each.patch[going]) for each in templates]
        is_seen = torch.zeros(len(frames), dtype=torch.bool)
        for match, limit in zip(search_near(parts, frames, place[going]), limits, strict=True):
            is_similar = match.error < limit[going]
            place[going] = torch.where(is_similar[:, None], match.places, place[going])
            is_seen |= is_similar
        age[going] = torch.where(is_seen, 0.0, age[going] + 1)
        places[:, step], ages[:, step] = place, age
    return (places + (start.places - center)[:, None])[is_frame], ages[is_frame]


def to_rgb(frames: Tensor) -> Tensor:
    """Convert frames (n, h, w, 3) uint8 to (n, 3, h, w) from 0 to 1."""
    return frames.permute(0, 3, 1, 2).float() / 255
