"""Style, backend and reproducible files of matplotlib figures."""

import io
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nsde_policy.errors import import_optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "svg.hashsalt": "nsde-policy",
    "svg.fonttype": "none",
    "text.parse_math": False,  # names come from files, and $ in them is a character
}


def pyplot() -> Any:
    """Import matplotlib.pyplot with the backend that needs no display."""
    import_optional("matplotlib", "plot").use("agg")
    return import_optional("matplotlib.pyplot", "plot")


def plot_style(**changes: object) -> AbstractContextManager[None]:
    """Return a context in which figures have the common style, with some settings changed."""
    style: AbstractContextManager[None] = pyplot().rc_context({**STYLE, **changes})
    return style


def make_figure(
    rows: int,
    columns: int,
    size: tuple[float, float],
    *,
    layout: Literal["constrained"] | None = "constrained",
    **options: object,
) -> "tuple[Figure, np.ndarray]":
    """Make a grid of panels, (rows, columns), with small ticks and without a frame at the top and right."""
    figure: Figure
    axes: np.ndarray
    figure, axes = pyplot().subplots(rows, columns, figsize=size, layout=layout, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(length=2, pad=2, labelsize=7)
    return figure, axes


def encode_figure(figure: "Figure", kind: str) -> bytes:
    """Return a figure as the content of a PNG or SVG file without a date."""
    buffer = io.BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None}}[kind]
    figure.savefig(buffer, format=kind, dpi=140, metadata=metadata)
    return buffer.getvalue()


if __name__ == "__main__":
    print(__doc__)
