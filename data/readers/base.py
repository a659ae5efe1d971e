"""The interface of a demonstration reader."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from nsde_policy.data.types import Demonstrations


class Reader(abc.ABC):
    """Reads one format of demonstrations.

    A format is one file in this folder, or an entry point of another package; `register_reader` decorates
    the class. A path is loaded by the first reader whose `probe` accepts it, or else by the zarr reader.
    Import the library of a format inside the methods, so that other formats work without it.
    """

    name: ClassVar[str]
    """Name of the format and of its file."""

    @abc.abstractmethod
    def probe(self, path: Path) -> bool:
        """Return whether a file or folder looks like this format; must be cheap and must not raise."""

    @abc.abstractmethod
    def load(self, path: Path, *, obs_keys: Sequence[str], act_key: str) -> Demonstrations:
        """Load the low-dimensional part of the demonstrations; `Demonstrations` checks shapes and values.

        Set angles, rate and limits if the files record them; the caller may override them.

        Args:
            path: File or folder.
            obs_keys: Names of the arrays that make up an observation, side by side.
            act_key: Name of the array that holds the actions.

        Raises:
            DemoError: If they are damaged or do not have the expected form.
        """
