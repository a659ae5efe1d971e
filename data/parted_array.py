"""Arrays that a format stores in parts, one for each episode."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nsde_policy.data.source import SourceArray
from nsde_policy.data.types import Numbers
from nsde_policy.errors import DemoError


class Part(NamedTuple):
    """Where a file holds the rows of an array that belong to one episode, or to all episodes of the file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: int
    """Number of frames; observations may have one row more, after the last action."""
    start: int = 0
    """Row of the first frame."""

    def __str__(self) -> str:
        return f"{self.name} in {self.file}"


class PartedArray(SourceArray):
    """An array whose parts have the same type and columns.

    Args:
        name: Name of the array.
        parts: Parts in the order of the episodes.
        image: First frame, decoded, if the rows are encoded images.

    Raises:
        DemoError: If a part has another type, other columns, or not one row for each action.
    """

    def __init__(self, name: str, parts: Sequence[Part], image: Numbers | None = None) -> None:
        first = parts[0]
        self.name, self._parts, self._is_encoded = name, parts, image is not None
        self._ends = np.cumsum([part.rows for part in parts])
        row, self.dtype = (first.shape[1:], first.dtype) if image is None else (image.shape, image.dtype)
        self.shape = (int(self._ends[-1]), *row)
        if self.dtype.kind not in "biuf" or not first.shape or 0 in row:
            raise DemoError(
                f"{first} is {first.dtype} {first.shape}, expected real numbers (frames, at least one column)"
            )
        extra = min(1, max(0, first.shape[0] - first.rows))
        for part in parts:
            given = part.shape[:1] if self._is_encoded else part.shape
            expected = (part.rows + extra, *([] if self._is_encoded else row))
            if (given, part.dtype) != (expected, first.dtype):
                raise DemoError(
                    f"{part} is {part.dtype} {part.shape}, expected {first.dtype} {expected}: a row for each "
                    "action, and the same type and columns in all episodes; repair or remove the episode"
                )

    def read(self, start: int, stop: int) -> Numbers:
        """Read the frames `start` to `stop`, from one part after the other."""
        frames = np.empty((stop - start, *self.shape[1:]), self.dtype)
        done, index = 0, int(np.searchsorted(self._ends, start, side="right"))
        while done < len(frames):
            part, end = self._parts[index], int(self._ends[index])
            first = start + done - (end - part.rows)
            rows = min(part.rows - first, len(frames) - done)
            frames[done : done + rows] = self._read_part(part, part.start + first, part.start + first + rows)
            done, index = done + rows, index + 1
        return frames

    @abc.abstractmethod
    def _read_part(self, part: Part, start: int, stop: int) -> Numbers:
        """Read rows of the array in the file that holds a part."""
