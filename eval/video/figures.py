"""Pictures of predicted videos: film strips, figures by network calls and by frame, and animations."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from nsde_policy.eval.compare.plots import MARKERS, REFERENCE_COLOUR, ROW_COLOURS
from nsde_policy.eval.offline.figures import draw_error
from nsde_policy.eval.render.gif import encode_gif
from nsde_policy.eval.render.pictures import Tile, draw_contact_sheet
from nsde_policy.eval.render.plotting import encode_figure, make_figure, plot_style, pyplot, save_figures
from nsde_policy.eval.video.evaluate import BASELINES_OF_VIDEO, VIDEO_FIGURES, VideoRow, VideoScores
from nsde_policy.files import replace_file
from nsde_policy.video.pixels import to_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAME_INCHES = 0.56
"""Side of a frame of a film strip."""
LETTER_INCHES = 0.07
"""Width of a letter of a title, about."""
RISING_FIGURES = ("psnr", "ssim")
"""Figures of which more is better; of the others, except for motion, less is better."""
FOUR_FIGURES = ("psnr", "ssim", "motion", "centroid")
"""Figures that are drawn by default."""
BASELINE_COLOURS = ("#555555", "#AAAAAA")
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
        return save_figures({name: plot_film_strip(context, videos, columns)}, out)


def plot_film_strip(context: Tensor, videos: Mapping[str, Tensor], columns: int = 12) -> "Figure":
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


def encode_film_strip(context: Tensor, videos: Mapping[str, Tensor], columns: int = 12) -> bytes:
    """Return the strip of `draw_film_strip` as the content of a PNG file."""
    with plot_style():
        figure = plot_film_strip(context, videos, columns)
        content = encode_figure(figure, "png")
    pyplot().close(figure)
    return content


def draw_call_curves(
    curves: Mapping[str, Mapping[int, VideoRow]],
    out: Path,
    *,
    baselines: Mapping[str, VideoRow] | None = None,
    figures: Sequence[str] = FOUR_FIGURES,
    name: str = "calls",
    dashed: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write figures against the number of network calls per frame as PNG and SVG.

    Args:
        curves: Rows of each method by the number of calls; the first method is drawn as the reference.
        out: Folder for the files.
        baselines: Rows that make no calls, drawn as lines across.
        figures: Names of `VIDEO_FIGURES` or of distances.
        name: Stem of the file names.
        dashed: Labels of methods that are drawn dashed, and of those whose colour they share.
    """
    shared = {label: of for label, of in (dashed or {}).items() if of in curves}
    solid = [label for label in curves if label not in shared]
    palette = dict(zip(solid, itertools.cycle((REFERENCE_COLOUR, *ROW_COLOURS)), strict=False))
    with plot_style():
        figure, axes = make_figure(1, len(figures), (2.6 * len(figures), 2.7))
        for axis, wanted in zip(axes[0], figures, strict=True):
            for i, (label, rows) in enumerate(curves.items()):
                look = {"color": palette[shared.get(label, label)], "ls": "--" if label in shared else "-"}
                estimates = {calls: rows[calls].estimate(wanted) for calls in sorted(rows)}
                _draw_calls(axis, estimates, i, label=label, **look)
            for (label, row), grey in zip((baselines or {}).items(), BASELINE_COLOURS, strict=False):
                axis.axhline(row.estimate(wanted).value, ls="--", lw=0.9, color=grey, label=label, zorder=1)
            _title(axis, wanted)
            axis.set_xscale("log")
            every = sorted({calls for rows in curves.values() for calls in rows})
            axis.set_xticks(every, [str(calls) for calls in every])
            axis.minorticks_off()
            axis.set_xlabel("network calls per frame")
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=5
        )
        return save_figures({name: figure}, out)


def _draw_calls(axis: Any, estimates: Mapping[int, Any], number: int, **look: Any) -> None:
    """Draw one method with its intervals, moved aside a little so that intervals do not hide each other."""
    calls = np.array([*estimates]) * 1.04**number
    value, low, high = (
        np.array([getattr(e, end) for e in estimates.values()]) for end in ("value", "low", "high")
    )
    reach = np.nan_to_num(np.stack([value - low, high - value]).clip(0))
    axis.errorbar(
        calls, value, reach, marker=MARKERS[number % len(MARKERS)], ms=3.5, lw=1.2, elinewidth=0.9,
        capsize=2, zorder=3, **look,
    )  # fmt: skip


def draw_frame_curves(
    scores: VideoScores, out: Path, *, figures: Sequence[str] = FOUR_FIGURES, name: str = "frames"
) -> list[Path]:
    """Write figures by predicted frame with their 95 % intervals as PNG and SVG.

    Figures that the scores do not hold, such as positions of videos without objects, are left out.
    """
    known = [wanted for wanted in figures if all(wanted in row.sums for row in scores.rows.values())]
    with plot_style():
        figure, axes = make_figure(1, len(known), (2.6 * len(known), 2.7))
        for axis, wanted in zip(axes[0], known, strict=True):
            colours, greys = itertools.cycle((REFERENCE_COLOUR, *ROW_COLOURS)), iter(BASELINE_COLOURS)
            for label, row in scores.rows.items():
                is_baseline = label in BASELINES_OF_VIDEO
                colour, line = (next(greys), "--") if is_baseline else (next(colours), "-")
                draw_error(axis, row.sums[wanted], label, colour, line=line)
            _title(axis, wanted)
            axis.set_xlabel("predicted frame")
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(),
            frameon=False,
            loc="outside lower center",
            ncols=5 if len(known) > 2 else 3,
        )
        return save_figures({name: figure}, out)


def _title(axis: Any, figure: str) -> None:
    """Title a panel with the name of a figure and what is good."""
    good = "higher" if figure in RISING_FIGURES else "1 is right" if figure == "motion" else "lower"
    axis.set_title(
        f"{VIDEO_FIGURES.get(figure, figure)} ({good}{'' if figure == 'motion' else ' is better'})"
    )


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
    replace_file(path, encode_animation(context, videos, period_s=period_s))


def encode_animation(context: Tensor, videos: Mapping[str, Tensor], *, period_s: float) -> bytes:
    """Return the animation of `write_animation` as the content of a GIF file."""
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
    return encode_gif(pictures, period_s=period_s, hold_s=1.0, colours=256)
