"""The interface of a demonstration reader."""

import abc
from pathlib import Path
from typing import ClassVar

from ..source import Source


class Reader(abc.ABC):
    """Opens one format of demonstrations.

    A format is one file in this folder, or an entry point of another package; `register_reader` decorates
    the class. A path is opened by the first reader whose `probe` accepts it, those of other packages first,
    or else by the zarr reader.
    Import the library of a format inside the methods, so that other formats work without it.
    """

    name: ClassVar[str]
    """Name of the format and of its file."""

    @abc.abstractmethod
    def probe(self, path: Path) -> bool:
        """Return whether a file or folder looks like this format; must be cheap and must not raise."""

    @abc.abstractmethod
    def open(self, path: Path) -> Source:
        """Open demonstrations without reading large arrays; raise `DemoError` if they are damaged."""
