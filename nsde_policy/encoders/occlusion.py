"""Random occlusion and light, as cameras in real rooms see them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NOISE_CELLS = 6
"""Random colours of a noisy occluder along each side of the frame; pixels between them are interpolated."""
RELIT, GAIN = 0.6, 0.2
"""Fraction of the frames in another light, and the largest relative change of their brightness."""
NOISY, NOISE = 0.3, 0.06
"""Fraction of the frames with noise, and its largest standard deviation."""


class RandomOccluder(NamedTuple):
    """A rectangle or an ellipse in front of some of the frames."""

    frequency: float
    """Fraction of the frames that have it."""
    areas: tuple[float, float]
    """Smallest and largest fraction of a frame that it covers."""
    widest: float = 2.0
    """Largest ratio of its sides."""


OCCLUDERS = (RandomOccluder(0.5, (0.02, 0.22)), *[RandomOccluder(0.5, (0.005, 0.05), 16.0)] * 4)
"""A large occluder and a few small ones, most of them narrow; each is in a frame or not."""
CLEAN = 0.3
"""Fraction of the frames that are left clean."""


def shift_frames(
    frames: Tensor, shift: Tensor, colour: Tensor | None = None, is_filled: Tensor | None = None
) -> Tensor:
    """Move each frame (n, h, w, 3) by (x, y) pixels, (n, 2); pixels at the edge are repeated.

    Where `is_filled`, (n,), the margin gets a `colour`, (n, 1, 1, 3), instead.
    """
    n, height, width, _ = frames.shape
    row = torch.arange(height, device=frames.device) - shift[:, 1:]
    column = torch.arange(width, device=frames.device) - shift[:, :1]
    rows, columns = row.clamp(0, height - 1), column.clamp(0, width - 1)
    if n == 1 and colour is None:  # in an exported graph, moving whole lines along the first axis is faster
        lines = frames[0].index_select(0, rows[0]).permute(1, 2, 0).index_select(0, columns[0])
        return lines.permute(2, 0, 1)[None]
    index = torch.arange(n, device=frames.device)[:, None, None]
    moved = frames[index, rows[:, :, None], columns[:, None, :]]
    if colour is None or is_filled is None:
        return moved
    outside = (row != rows)[:, :, None] | (column != columns)[:, None, :]
    return torch.where((outside & is_filled[:, None, None])[..., None], colour, moved)


def sample_masks(n: int, size: int, occluder: RandomOccluder, generator: torch.Generator) -> Tensor:
    """Sample an occluder for each of n frames, (n, size, size) bool; some reach beyond the edge."""

    def sample(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, device=generator.device, generator=generator)

    area, ratio, centre = (
        sample(*occluder.areas, 1),
        occluder.widest ** sample(-1.0, 1.0, 1),
        sample(-1.0, 1.0, 2),
    )
    grid = torch.linspace(-1, 1, size, device=generator.device)
    x = (grid - centre[:, :1]) / (area * ratio).sqrt()  # from -1 to 1 inside a rectangle
    y = (grid - centre[:, 1:]) / (area / ratio).sqrt()
    is_round, is_absent = sample(0.0, 1.0, 1) < 0.5, sample(0.0, 1.0, 1) >= occluder.frequency
    # A pixel is covered if its two distances add up to at most 1.
    across, down = (torch.where(is_round, torch.pi / 4 * z.square(), 2.0 * (z.abs() > 1)) for z in (x, y))
    return (across + 2.0 * is_absent)[:, None, :] + down[:, :, None] <= 1


def sample_fill(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Sample what occluders look like: one colour, grey, coloured noise, or a piece of another frame.

    Takes and returns frames (n, size, size, 3) uint8.
    """
    n, size, device = len(frames), frames.shape[1], frames.device
    colour = torch.randint(0, 256, (n, 1, 1, 3), device=device, generator=generator, dtype=torch.uint8)
    cells = torch.rand(n, 3, NOISE_CELLS, NOISE_CELLS, device=device, generator=generator)
    noise = 255 * F.interpolate(cells, size, mode="bilinear").permute(0, 2, 3, 1)
    kinds = (
        colour,
        colour[..., :1],
        noise.to(torch.uint8),
        frames.roll((1, size // 3, size // 3), (0, 1, 2)),
    )
    kind = torch.randint(0, len(kinds), (n, 1, 1, 1), device=device, generator=generator)
    fill = torch.empty_like(frames)
    for i, values in enumerate(kinds):
        fill = torch.where(kind == i, values, fill)
    return fill


def occlude_frames(frames: Tensor, occluders: Sequence[RandomOccluder], generator: torch.Generator) -> Tensor:
    """Put occluders in front of frames, (n, size, size, 3) uint8; those in one frame look alike."""
    size = frames.shape[1]
    masks = [sample_masks(len(frames), size, occluder, generator) for occluder in occluders]
    return torch.where(torch.stack(masks).any(0)[..., None], sample_fill(frames, generator), frames)


def change_light(frames: Tensor, gain: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """Multiply frames (n, size, size, 3) uint8 by a gain, (n,), and add noise in units of the range."""
    lit = frames.to(torch.float32) * gain[:, None, None, None] + 255 * noise
    return lit.round().clamp(0, 255).to(torch.uint8)


def disturb_frames(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Occlude most frames (n, size, size, 3) uint8, and change their light, each independently."""

    def sample() -> Tensor:
        return torch.rand(len(frames), device=frames.device, generator=generator)

    is_clean = (sample() < CLEAN)[:, None, None, None]
    frames = torch.where(is_clean, frames, occlude_frames(frames, OCCLUDERS, generator))
    gain = 1 + GAIN * (2 * sample() - 1) * (sample() < RELIT)
    noise = torch.randn(frames.shape, device=frames.device, generator=generator)
    strength = NOISE * sample() * (sample() < NOISY)
    return change_light(frames, gain, strength[:, None, None, None] * noise)


class EpisodeOcclusion:
    """A plain occluder and a light for each of `n` episodes, the same in all frames of an episode.

    `gain` is the largest relative change of the brightness.
    """

    def __init__(
        self, n: int, size: int, occluder: RandomOccluder, gain: float, generator: torch.Generator
    ) -> None:
        device = generator.device
        self._masks = sample_masks(n, size, occluder, generator)[..., None]
        self._colours = torch.randint(
            0, 256, (n, 1, 1, 3), device=device, generator=generator, dtype=torch.uint8
        )
        self._gains = 1 + gain * (2 * torch.rand(n, device=device, generator=generator) - 1)

    def apply(self, frames: Tensor, episode: Tensor) -> Tensor:
        """Return frames (n, size, size, 3) uint8 of the episodes (n,) as their cameras see them."""
        occluded = torch.where(self._masks[episode], self._colours[episode], frames)
        return change_light(occluded, self._gains[episode])
