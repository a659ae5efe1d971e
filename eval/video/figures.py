"""Pictures of predicted videos: film strips and animations."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from nsde_policy.eval.render.gif import encode_gif
from nsde_policy.eval.render.pictures import Tile, draw_contact_sheet
from nsde_policy.eval.render.plotting import make_figure, plot_style, save_figures
from nsde_policy.files import replace_file
from nsde_policy.video.pixels import to_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAME_INCHES = 0.56
"""Side of a frame of a film strip."""
LETTER_INCHES = 0.07
"""Width of a letter of a title, about."""
LEAST_SIDE = 160
"""Smallest side of a frame in an animation, pixels."""


def draw_film_strip(
    context: Tensor, videos: Mapping[str, Tensor], out: Path, *, name: str = "film_strip", columns: int = 12
) -> list[Path]:
    """Write a strip with one row per video and one column per frame as PNG and SVG.

    Args:
        context: Frames before the predicted ones, (context, size, size, 3) uint8.
        videos: Frames (steps, 3, size, size) with values from -1 to 1 by title; the truth first.
        out: Folder for the files.
        name: Stem of the file names.
        columns: Most frames to show; of more, equally spaced ones with the first and the last.
    """
    with plot_style():
        return save_figures({name: _plot_film_strip(context, videos, columns)}, out)


def _plot_film_strip(context: Tensor, videos: Mapping[str, Tensor], columns: int) -> "Figure":
    """Plot the strip of `draw_film_strip` in the current style."""
    steps, seen = len(next(iter(videos.values()))), context.cpu().numpy()
    shown = np.unique(np.linspace(0, steps - 1, min(columns, steps)).round().astype(int))
    first = len(seen) + 1  # column of the first predicted frame, after a gap
    ratios = [1.0] * len(seen) + [0.2] + [1.0] * len(shown)
    blank = FRAME_INCHES * sum(ratios[:first])
    room = [LETTER_INCHES * len(title) - (blank if i else 0) for i, title in enumerate(videos)]
    margin = 0.1 + max(*room, 0)
    width, height = margin + FRAME_INCHES * sum(ratios), FRAME_INCHES * len(videos) + 0.3
    grid = {"width_ratios": ratios, "wspace": 0.06, "hspace": 0.06}
    margins = {"left": margin / width, "right": 0.995, "bottom": 0.05 / height, "top": 1 - 0.25 / height}
    figure, axes = make_figure(
        len(videos), len(ratios), (width, height), layout=None, gridspec_kw={**grid, **margins}
    )
    for axis in axes.flat:
        axis.axis("off")
    for axis, frame in zip(axes[0], seen, strict=False):
        axis.imshow(frame)
    for i, (title, video) in enumerate(videos.items()):
        for axis, frame in zip(axes[i, first:], to_bytes(video[shown]).cpu().numpy(), strict=True):
            axis.imshow(frame)
        beside = axes[i, first if i else 0]  # predictions are labelled where the truth has its context
        beside.text(-0.12, 0.5, title, transform=beside.transAxes, ha="right", va="center")
    for k, axis in enumerate(axes[0, : len(seen)], 1 - len(seen)):
        axis.set_title(f"{k}, given".replace("-", "−"), fontsize=7, color="#777777", pad=2)
    for k, axis in zip(shown, axes[0, first:], strict=True):
        axis.set_title(f"+{k + 1}", fontsize=7, pad=2)
    return figure


def write_animation(
    context: Tensor, videos: Mapping[str, Tensor], path: Path, *, period_s: float = 0.15
) -> None:
    """Write videos side by side as an animated GIF: the context, then the predicted frames.

    Args:
        context: Frames before the predicted ones, (context, size, size, 3) uint8.
        videos: Frames (steps, 3, size, size) with values from -1 to 1 by title; the truth first.
        path: File to write.
        period_s: Time between two frames.
    """
    seen = [[frame] * len(videos) for frame in context.cpu().numpy()]
    predicted = zip(*(to_bytes(video).cpu().numpy() for video in videos.values()), strict=True)
    pictures = []
    for k, frames in enumerate((*seen, *predicted), 1 - len(seen)):
        scale = -(-LEAST_SIDE // len(frames[0]))
        tiles = [
            Tile(np.kron(frame, np.ones((scale, scale, 1), np.uint8)), title, good=True)
            for title, frame in zip(videos, frames, strict=True)
        ]
        title = f"frame +{k}" if k > 0 else f"frame {k}, given"
        pictures.append(draw_contact_sheet(tiles, columns=len(tiles), title=title))
    replace_file(path, encode_gif(pictures, period_s=period_s, hold_s=1.0, colours=256))
