"""What all figures share: a style, a backend without a display, files that are the same byte for byte."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsde_policy.errors import MissingDependencyError
from nsde_policy.files import replace_file

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
}


def pyplot() -> Any:
    """matplotlib.pyplot on the backend that needs no display."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError.extra("matplotlib", "plot") from error
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure: "Figure", out: Path, name: str) -> list[Path]:
    """PNG and SVG without dates, written whole or not at all."""
    paths = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=140, metadata=metadata)
        replace_file(out / f"{name}.{kind}", buffer.getvalue())
        paths.append(out / f"{name}.{kind}")
    return paths
