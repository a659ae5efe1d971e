"""What comes with the package: a trained Push-T policy, and demonstrations that it generated."""

from pathlib import Path

SHIPPED_POLICY = Path(__file__).parent / "pusht"
"""Run directory of the shipped policy."""
SHIPPED = "shipped"
"""What commands call it, where a run must be named."""
EMBEDDED_DEMOS = Path(__file__).parent / "pusht_demos.zarr.zip"
"""Successful episodes of the shipped policy; provenance is in the store's attributes."""


def resolve_run(name: Path) -> Path:
    """The run directory that a command line names: a path, or the word for the shipped policy."""
    return SHIPPED_POLICY if name == Path(SHIPPED) and not name.exists() else name
