"""Replay-buffer stores, `data/<arrays>` and `meta/episode_ends`, opened without trusting them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsde_policy.data.types import Floats, Ints, check_ends, check_finite, check_lengths, convert_to_float32
from nsde_policy.data.zarr_store.arrays import ACCEPT_OMITTED, StoredArray, format_brief
from nsde_policy.data.zarr_store.files import StoreFiles
from nsde_policy.errors import DemoError

RECORDING = "nsde_policy_recording"
"""Root attribute of stores written by `DemoWriter`; frames behind the last episode end are not committed."""
MAX_COLUMNS = 4096
"""Maximum number of columns that are loaded into memory; wider arrays are images and read lazily."""
MAX_DEPTH, MAX_FOLDERS = 8, 10_000
"""Most levels of folders in a store, and most folders."""
_REAL_DTYPE = re.compile(r"[<>|=]?[biuf]\d+|bool|u?int\d+|float\d+")


class Store(StoreFiles):
    """An open store, a directory or a zip, zarr format 2 or 3."""

    def __init__(
        self,
        path: Path,
        *,
        episode_ends: str = "episode_ends",
        accept_omitted_chunks: bool = False,
        omitted_advice: str = ACCEPT_OMITTED,
    ) -> None:
        super().__init__(path)
        self._accept_omitted, self._omitted_advice = accept_omitted_chunks, omitted_advice
        self._ends_name = f"meta/{episode_ends}"

    @property
    def zarr_format(self) -> int:
        """Version of the zarr format, 2 or 3."""
        return 2 if self.size(".zgroup") is not None else 3

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the root group."""
        if self.zarr_format == 2:
            return self.read_metadata(".zattrs")
        attributes = self.read_metadata("zarr.json").get("attributes", {})
        if not isinstance(attributes, dict):
            raise DemoError(f"the attributes in zarr.json are {attributes!r}, expected a JSON object")
        return attributes

    def find_arrays(self, folder: str) -> list[str]:
        """Return the paths of all arrays below `folder`, readable or not.

        Raises:
            DemoError: If folders are nested too deep, as links in a circle are, or too many.
        """
        found: list[str] = []
        open_folders, visited = [folder], 0
        while open_folders:
            parent = open_folders.pop()
            children = [f"{parent}/{child}" for child in self.list_folders(parent)]
            visited += len(children)
            if parent.count("/") >= MAX_DEPTH or visited > MAX_FOLDERS:
                raise DemoError(
                    f"{folder} has more than {MAX_FOLDERS} folders or {MAX_DEPTH} levels; a link may lead "
                    "back to a folder that contains it"
                )
            for name in children:
                try:
                    is_array = self._read_array_metadata(name) is not None
                except DemoError:
                    is_array = True
                (found if is_array else open_folders).append(name)
        return sorted(found)

    def describe_missing(self, name: str) -> str:
        """Describe a missing array and list the arrays of the store."""
        names = ", ".join(self.find_arrays("data") + self.find_arrays("meta")) or "none"
        return f"no array {name!r} in {self.path}; it holds: {names}"

    def open_array(self, name: str) -> StoredArray:
        """Open the array at the path `name`, such as data/state."""
        import zarr

        metadata = self._read_array_metadata(name)
        if metadata is None:
            raise DemoError(self.describe_missing(name))
        codecs = str([metadata.get(key) for key in ("filters", "compressor", "codecs")])
        if "pickle" in codecs:  # before zarr sees the array
            raise DemoError(f"{name} is stored as pickles, which can run code; they are never loaded")
        dtype = metadata.get("dtype", metadata.get("data_type"))
        if dtype is None:
            raise DemoError(f"the metadata of {name} does not give a data type")
        if not (isinstance(dtype, str) and _REAL_DTYPE.fullmatch(dtype)):
            raise DemoError(f"{name} holds {dtype!r}, expected real numbers")
        self.read_metadata(f"{name}/.zattrs")  # zarr reads it too, and trusts it
        try:
            zarray = zarr.open_array(
                self.zarr_store,
                path=self.prefix + name,
                mode="r",
                zarr_format=2 if "dtype" in metadata else 3,
            )
        except Exception as error:
            # versions of zarr before 3.1 raise other errors for an unknown codec
            if (
                type(error).__name__ == "UnknownCodecError"
                or "codec not available" in str(error)
                or (isinstance(error, KeyError) and repr(error.args[0]) in codecs)
            ):
                message = f"{name} needs a codec that is not installed: {format_brief(error)}"
                raise DemoError(message) from error
            raise DemoError(f"the metadata of {name} is invalid ({format_brief(error)})") from error
        if zarray.ndim == 0 or 0 in zarray.shape[1:] or 0 in zarray.chunks:
            raise DemoError(f"{name} has shape {zarray.shape}, expected (frames, at least one column)")
        return StoredArray(name, zarray, self, self._accept_omitted, self._omitted_advice)

    def open_episodes(self, names: Sequence[str]) -> tuple[Ints, list[StoredArray]]:
        """Read the episode ends and open the named arrays, which must have the same number of frames.

        Frames behind the last episode end are ignored in recordings of `DemoWriter`, which may be growing or
        interrupted, and are an error in any other store.
        """
        if self._read_array_metadata(self._ends_name) is None:
            raise DemoError(
                f"{self.describe_missing(self._ends_name)}; write one past the last frame of each episode "
                "there, such as [100, 250] for episodes of 100 and 150 frames"
            )
        ends = self.open_array(self._ends_name)
        ends.check_size(ends.shape[0])
        ends.check_chunks(ends.shape[0])
        values = ends.read(0, ends.shape[0])
        if not values.size:
            raise DemoError(f"{ends.name} is empty: {self.path} holds 0 episodes, at least 1 is needed")
        arrays = [self.open_array(name) for name in names]
        frames = [array.shape[0] for array in arrays]
        if RECORDING in self.attributes and values.dtype.kind in "iu":
            frames = [min(length, int(values.flat[-1])) for length in frames]
        check_lengths(dict(zip(names, frames, strict=True)))
        return check_ends(values, max(frames, default=0)), arrays

    def _read_array_metadata(self, name: str) -> dict[str, Any] | None:
        if self.size(f"{name}/.zarray") is not None:
            return self.read_metadata(f"{name}/.zarray")
        metadata = self.read_metadata(f"{name}/zarr.json")
        return metadata if metadata.get("node_type") == "array" else None


def read_columns(array: StoredArray, ends: Ints) -> Floats:
    """Read the episodes of a low-dimensional array, flattened to (frames, columns), all finite."""
    if array.width > MAX_COLUMNS:
        raise DemoError(
            f"{array.name} has {array.width} numbers a frame, too many to load; open_images reads it lazily"
        )
    frames = int(ends[-1])
    array.check_size(frames)
    array.check_chunks(frames)
    values = convert_to_float32(array.read(0, frames).reshape(frames, array.width), array.name)
    check_finite(values, array.name, ends)
    return values
