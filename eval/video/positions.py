"""Positions of the objects in frames of `collisions`, found by their colours."""

from typing import NamedTuple

import torch
from torch import Tensor

from nsde_policy.video.collisions import PALETTE, TABLE, Objects

COLOUR_DISTANCE = 60.0
"""Largest distance of a pixel from the colour of an object, of 255 per channel; the two closest colours are
73 apart."""
FEWEST_PIXELS = 4
"""An object with fewer pixels of its colour, in a frame of 64 × 64, is lost."""
FRAMES_AT_ONCE = 512
"""Frames whose pixels are compared with the colours at once."""


class FoundColours(NamedTuple):
    """Where each colour of the palette is in each frame."""

    position: Tensor
    """Centroids (x, y) in pixels of a frame of 64, (..., 8, 2); NaN if the colour is missing."""
    pixels: Tensor
    """Number of pixels of the colour, in pixels of a frame of 64, (..., 8)."""


class PositionErrors(NamedTuple):
    """Errors of the objects of each frame, summed over the objects; each (n, steps)."""

    distance: Tensor
    """Sum of the distances between found and true positions, pixels of a frame of 64."""
    found: Tensor
    """Number of objects that were found."""
    lost: Tensor
    """Number of objects that should be visible and were not found."""


def find_colours(frames: Tensor) -> FoundColours:
    """Find the centroid of each colour in frames (..., 3, size, size) with values from -1 to 1.

    A pixel belongs to the colour nearest to it, table included, if it is within `COLOUR_DISTANCE` of it, and
    counts less the farther away it is.
    """
    flat = frames.flatten(0, -4)
    moments = torch.cat([_sum_moments(part) for part in torch.split(flat, FRAMES_AT_ONCE)])
    moments = moments.reshape(*frames.shape[:-3], len(PALETTE), 4)
    weight, pixels = moments[..., 0], moments[..., 3]
    position = moments[..., 1:3] / weight[..., None]  # 0 / 0 is NaN
    missing = pixels < FEWEST_PIXELS
    return FoundColours(position.masked_fill(missing[..., None], torch.nan), pixels)


def _sum_moments(frames: Tensor) -> Tensor:
    """Return for frames (n, 3, size, size) and each colour Σw, Σwx, Σwy and the pixels, (n, 8, 4)."""
    size = frames.shape[-1]
    colours = torch.tensor([*PALETTE, TABLE], dtype=torch.float32, device=frames.device)
    pixels = (frames.float().flatten(2).transpose(1, 2) + 1) * 127.5
    square = colours.square().sum(-1) - 2 * pixels @ colours.T  # distance² less |pixel|², (n, size², 9)
    nearest, index = square.min(dim=-1)
    distance = (nearest + pixels.square().sum(-1)).clamp(min=0).sqrt()
    weight = (1 - distance / COLOUR_DISTANCE).clamp(min=0)
    axis = (torch.arange(size, device=frames.device) + 0.5) * (64 / size)
    area = torch.full((size * size,), (64 / size) ** 2, device=frames.device)
    x, y = axis.repeat(size), axis.repeat_interleave(size)
    shares = torch.stack([weight, weight * x, weight * y, (weight > 0) * area], dim=-1)
    is_colour = (index[..., None] == torch.arange(len(PALETTE), device=frames.device)).float()
    return is_colour.transpose(1, 2) @ shares


def find_objects(frames: Tensor, objects: Objects) -> Tensor:
    """Return the found positions of the objects in frames (n, steps, …), (n, steps, 5, 2); NaN if lost."""
    return _choose_colours(find_colours(frames).position, objects)


def score_positions(predicted: Tensor, objects: Objects, position: Tensor, visible: Tensor) -> PositionErrors:
    """Compare the objects of predicted frames with their true positions.

    Args:
        predicted: Frames, (n, steps, 3, size, size).
        objects: What the objects are.
        position: True positions, (n, steps, 5, 2).
        visible: Which of them the true frames show, see `find_visible`.
    """
    distance = (find_objects(predicted, objects) - position).norm(dim=-1)
    found = visible & distance.isfinite()
    total = torch.where(found, distance, 0.0).sum(-1)
    return PositionErrors(total, found.sum(-1), (visible & ~found).sum(-1))


def find_visible(true: Tensor, objects: Objects) -> Tensor:
    """Return which objects true frames (n, steps, …) show, (n, steps, 5) bool."""
    return find_objects(true, objects)[..., 0].isfinite() & objects.present[:, None]


def _choose_colours(values: Tensor, objects: Objects) -> Tensor:
    """Return the entries (n, steps, 5, …) of the objects' colours from values (n, steps, 8, …)."""
    rows = torch.arange(len(values), device=values.device)[:, None]
    return values.movedim(1, 2)[rows, objects.colour].movedim(2, 1)
