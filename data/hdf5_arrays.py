"""Arrays in HDF5 files, read on demand without trusting the files."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nsde_policy.data.encoded_images import decode_image, is_encoded
from nsde_policy.data.source import SourceArray
from nsde_policy.data.types import Numbers
from nsde_policy.data.zarr_store.store import MAX_DEPTH, wrap_read_errors
from nsde_policy.errors import DemoError, import_optional
from nsde_policy.files import open_regular

RESULTS = {
    *("next_obs", "next_observations", "rewards", "dones", "terminals", "timeouts", "terminations"),
    *("truncations", "terminated", "truncated", "success", "fail", "datagen_info"),
}
"""Arrays and groups that are left out: what follows an action cannot be an observation."""
OUTSIDE = "is a link or is stored in another file, and is not followed: put a copy of its content there"


class Part(NamedTuple):
    """The dataset that holds an array's rows of one episode, or of all episodes in a D4RL file."""

    file: Path
    dataset: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: int
    """Number of frames; a dataset of observations may have one row more, after the last action."""

    def __str__(self) -> str:
        return f"{self.dataset} in {self.file}"


class Hdf5Array(SourceArray):
    """An array whose frames are the rows of one dataset per episode; JPEG and PNG are decoded when read."""

    def __init__(self, name: str, parts: Sequence[Part], open_file: Callable[[Path], Any]) -> None:
        self.name, self._parts, self._open_file = name, parts, open_file
        self._ends = np.cumsum([part.rows for part in parts])
        first = parts[0]
        row, self.dtype = first.shape[1:], first.dtype
        self._is_encoded = False
        if first.dtype.kind in "OS" or (first.dtype == np.uint8 and len(row) == 1):
            with wrap_read_errors(f"{first} cannot be read"):
                sample = self._open(first)[0]
            self._is_encoded = isinstance(sample, bytes | np.ndarray) and is_encoded(sample)
            if self._is_encoded:
                image = decode_image(sample, f"{first}, row 0,")
                row, self.dtype = image.shape, image.dtype
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
        """Read the frames `start` to `stop`, from one episode after the other."""
        frames = np.empty((stop - start, *self.shape[1:]), self.dtype)
        done, index = 0, int(np.searchsorted(self._ends, start, side="right"))
        while done < len(frames):
            part, end = self._parts[index], int(self._ends[index])
            first = start + done - (end - part.rows)
            rows = min(part.rows - first, len(frames) - done)
            frames[done : done + rows] = self._read_part(part, first, first + rows)
            done, index = done + rows, index + 1
        return frames

    def find_faults(self, frames: int) -> Iterator[str]:
        """Describe datasets with parts that were never written, which HDF5 reads as zeros."""
        for part in self._parts:
            with wrap_read_errors(f"{part} cannot be read"):
                dataset = self._open(part)
                written, expected = int(dataset.id.get_storage_size() > 0), 1
                if dataset.chunks:
                    counts = [-(-size // step) for size, step in zip(part.shape, dataset.chunks, strict=True)]
                    written, expected = dataset.id.get_num_chunks(), math.prod(counts)
            if written < expected:
                yield f"{part} is incomplete: {written} of {expected} chunks were written"

    def _open(self, part: Part) -> Any:
        dataset = self._open_file(part.file)[part.dataset]
        self.check_bytes(math.prod(dataset.chunks or ()), "a chunk")
        return dataset

    def _read_part(self, part: Part, start: int, stop: int) -> Numbers:
        with wrap_read_errors(f"rows {start} to {stop} of {part} cannot be read; restore them"):
            rows = self._open(part)[start:stop]
        if not self._is_encoded:
            return np.asarray(rows)
        images = [decode_image(row, f"{part}, row {start + i},") for i, row in enumerate(rows)]
        for i, image in enumerate(images):
            if (image.shape, image.dtype) != (self.shape[1:], self.dtype):
                raise DemoError(
                    f"{part}, row {start + i}, is an image {image.dtype} {image.shape}, expected "
                    f"{self.dtype} {self.shape[1:]} as in the first frame"
                )
        return np.stack(images)


def open_hdf5(path: Path) -> Any:
    """Open a regular file with h5py; raise `DemoError` if it is no HDF5 file or truncated."""
    h5py = import_optional("h5py", "hdf5")
    open_regular(path, error=DemoError).close()
    with wrap_read_errors(f"{path} is not an undamaged HDF5 file"):
        return h5py.File(path, "r")


def find_datasets(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the datasets below a group by name."""
    check_links(group)
    for key in (key for key in group if key not in RESULTS):
        item = group[key]
        if not hasattr(item, "keys"):
            if item.is_virtual or item.external:
                raise DemoError(f"{item.name} in {group.file.filename} {OUTSIDE}")
            yield prefix + key, item
        elif prefix.count("/") < MAX_DEPTH:
            yield from find_datasets(item, f"{prefix}{key}/")


def check_links(group: Any) -> None:
    """Raise `DemoError` if a member is a link, which may lead to another file or back to this group."""
    for key in group:
        if type(group.get(key, getlink=True)).__name__ != "HardLink":
            raise DemoError(f"{key} of {group.name} in {group.file.filename} {OUTSIDE}")
