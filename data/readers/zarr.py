"""Replay-buffer zarr stores, format 2 or 3, a directory or a zip."""

from pathlib import Path

from ..zarr_store.files import ROOT_KEYS
from ..zarr_store.store import Store
from .base import Reader
from .registry import register_reader


@register_reader
class ZarrReader(Reader):
    """Reader of the arrays in `data/` and of `meta/episode_ends`."""

    name = "zarr"

    def probe(self, path: Path) -> bool:
        """Recognise zarr directories and zip files."""
        return path.suffix == ".zip" or any((path / key).exists() for key in ROOT_KEYS)

    def open(self, path: Path) -> Store:
        """Open a store; angles and names of columns are attributes of arrays, the rate one of the store."""
        return Store(path)
