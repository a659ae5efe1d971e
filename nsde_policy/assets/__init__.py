"""What comes with the package: a trained Push-T policy, and demonstrations that it generated."""

from pathlib import Path

SHIPPED_POLICY = Path(__file__).parent / "pusht"
"""Run directory of the shipped policy."""
EMBEDDED_DEMOS = Path(__file__).parent / "pusht_demos.zarr.zip"
"""Successful episodes of the shipped policy; provenance is in the store's attributes."""
