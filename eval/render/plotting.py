"""Style, backend and reproducible files of matplotlib figures."""

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
    """Import matplotlib.pyplot with the backend that needs no display."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError.extra("matplotlib", "plot") from error
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure: "Figure", out: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG, atomically and without dates, and return the paths."""
    paths = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=140, metadata=metadata)
        replace_file(out / f"{name}.{kind}", buffer.getvalue())
        paths.append(out / f"{name}.{kind}")
    return paths
