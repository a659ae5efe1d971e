"""One array of a store: opened with care, checked chunk by chunk, read in slices of frames."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nsde_policy.data.zarr_store.chunks import chunk_faults, codec_names
from nsde_policy.data.zarr_store.files import Files
from nsde_policy.errors import ArrayError, DamagedStoreError
from nsde_policy.files import parse_json

MAX_METADATA_BYTES = 16 * 2**20
"""Largest metadata file that is parsed."""
_NUMBERS = re.compile(r"[<>|=]?[biuf]\d+|bool|u?int\d+|float\d+")


@dataclass(frozen=True)
class StoredArray:
    """An array on disk whose rows are frames, (frames, …); nothing of it is in memory."""

    name: str
    """Its path in the store, such as data/state."""
    attributes: dict[str, Any]
    """What the recording says about it, for example which of its columns are angles."""
    zarray: Any
    """The zarr array."""
    metadata: dict[str, Any]
    """Its `.zarray` or `zarr.json`."""
    files: Files
    """The store it is in."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(frames, …)."""
        return tuple(self.zarray.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its numbers as stored."""
        dtype: np.dtype[Any] = self.zarray.dtype
        return dtype

    @property
    def rows_per_read(self) -> int:
        """Frames that zarr decodes together."""
        return int((self.zarray.shards or self.zarray.chunks)[0])

    def verify(self, frames: int, *, accept_omitted: bool = False) -> None:
        """Refuse missing and damaged chunks among those of the first `frames` frames."""
        faults = chunk_faults(self.files, self.name, self.zarray, self.metadata, frames)
        for fault in faults:
            if not fault.missing:
                raise DamagedStoreError(f"chunk {fault.key} {fault.finding}; restore it from the original")
            if not accept_omitted:
                raise DamagedStoreError(
                    f"chunk {fault.key} {fault.finding}, zarr would read {self.zarray.fill_value} there; "
                    "restore it, or, if its writer omits chunks of nothing else, set accept_omitted_chunks"
                )

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Frames `start` to `stop`, decoded, (stop − start, …)."""
        try:
            return np.asarray(self.zarray[start:stop])
        except Exception as error:
            if stop - start > self.rows_per_read:
                for row in range(start, stop, self.rows_per_read):
                    self.read(row, min(row + self.rows_per_read, stop))
            raise DamagedStoreError(
                f"{self.name}: frames {start} to {stop} cannot be decoded ({_brief(error)}); "
                "restore their chunk from the original"
            ) from error


def open_array(files: Files, name: str) -> StoredArray | None:
    """Open the array `name`; None where the store has none of that name."""
    import zarr

    metadata = _metadata(files, name)
    if metadata is None:
        return None
    _refuse_non_numbers(name, metadata)
    try:
        zarray = zarr.open_array(store=files.store, path=files.prefix + name, mode="r")
        attributes = dict(zarray.attrs)
    except Exception as error:
        if _lacks_codec(error, metadata):
            raise ArrayError(f"{name} is packed by a codec that is not installed: {_brief(error)}") from error
        raise DamagedStoreError(f"the metadata of {name} makes no sense ({_brief(error)})") from error
    if zarray.ndim == 0 or 0 in zarray.shape[1:] or 0 in zarray.chunks:
        raise ArrayError(f"{name} has shape {zarray.shape}, expected (frames, at least one column)")
    return StoredArray(name, attributes, zarray, metadata, files)


def _lacks_codec(error: Exception, metadata: dict[str, Any]) -> bool:
    """Whether zarr met a codec it does not know; before 3.1 it says so in other ways."""
    if type(error).__name__ == "UnknownCodecError" or "codec not available" in str(error):
        return True
    return isinstance(error, KeyError) and error.args[0] in codec_names(metadata)


def array_names(files: Files, folder: str) -> list[str]:
    """Paths of all arrays below `folder`."""
    found = []
    for child in files.children(folder):
        name = f"{folder}/{child}"
        found += [name] if _is_array(files, name) else array_names(files, name)
    return found


def read_metadata(files: Files, key: str) -> dict[str, Any]:
    """Read a JSON object of the store; empty if the key does not exist."""
    size = files.size(key)
    if size is None:
        return {}
    if size > MAX_METADATA_BYTES:
        raise DamagedStoreError(f"{key} has {size} bytes, expected at most {MAX_METADATA_BYTES}")
    return parse_json(files.read(key), name=key, error=DamagedStoreError)


def _is_array(files: Files, name: str) -> bool:
    """Whether there is an array, readable or not, at the path `name`."""
    try:
        return _metadata(files, name) is not None
    except DamagedStoreError:
        return True


def _metadata(files: Files, name: str) -> dict[str, Any] | None:
    if files.size(f"{name}/.zarray") is not None:
        return read_metadata(files, f"{name}/.zarray")
    if files.size(f"{name}/zarr.json") is None:
        return None
    metadata = read_metadata(files, f"{name}/zarr.json")
    return metadata if metadata.get("node_type") == "array" else None


def _refuse_non_numbers(name: str, metadata: dict[str, Any]) -> None:
    """Refuse by the metadata alone, so that no pickle is ever opened."""
    try:
        codecs = codec_names(metadata)
    except (AttributeError, TypeError) as error:
        raise DamagedStoreError(f"the metadata of {name} makes no sense ({_brief(error)})") from error
    if any("pickle" in codec for codec in codecs):
        raise ArrayError(f"{name} is stored as pickles, which can run code; they are never opened")
    dtype = metadata.get("dtype", metadata.get("data_type"))
    if dtype is None:
        raise DamagedStoreError(f"the metadata of {name} does not say what it holds")
    if not (isinstance(dtype, str) and _NUMBERS.fullmatch(dtype)):
        raise ArrayError(f"{name} holds {dtype!r}, expected real numbers")


def _brief(error: Exception) -> str:
    """First line of a message that was written elsewhere."""
    return (str(error).splitlines() or [""])[0][:120] or type(error).__name__
