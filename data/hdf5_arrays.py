"""Arrays in HDF5 files, read on demand without trusting the files."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.data.encoded_images import decode_image, is_encoded
from nsde_policy.data.parted_array import Part, PartedArray
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


class Hdf5Array(PartedArray):
    """An array with a dataset for each episode; JPEG and PNG are decoded when they are read."""

    def __init__(self, name: str, parts: Sequence[Part], open_file: Callable[[Path], Any]) -> None:
        self.name, self._open_file = name, open_file
        first, image = parts[0], None
        self.dtype = first.dtype
        if first.dtype.kind in "OS" or (first.dtype == np.uint8 and len(first.shape) == 2):
            with wrap_read_errors(f"{first} cannot be read"):
                sample = self._open(first)[0]
            if isinstance(sample, bytes | np.ndarray) and is_encoded(sample):
                image = decode_image(sample, f"{first}, row 0,")
        super().__init__(name, parts, image)

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
        dataset = self._open_file(part.file)[part.name]
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
