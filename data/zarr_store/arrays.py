"""Arrays of a store: validated metadata, chunk checks, reading of frame ranges."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nsde_policy.data.zarr_store.chunks import ChunkFault, codec_names, find_chunk_faults
from nsde_policy.data.zarr_store.files import Files
from nsde_policy.errors import ArrayError, DamagedStoreError
from nsde_policy.files import parse_json

MAX_METADATA_BYTES = 16 * 2**20
_REAL_DTYPE = re.compile(r"[<>|=]?[biuf]\d+|bool|u?int\d+|float\d+")


@dataclass(frozen=True)
class StoredArray:
    """An array on disk whose rows are frames, (frames, …); nothing is kept in memory."""

    name: str
    """Path in the store, such as data/state."""
    attributes: dict[str, Any]
    """Attributes of the array, such as its angle columns."""
    zarray: Any
    """The zarr array."""
    metadata: dict[str, Any]
    """Content of `.zarray` or `zarr.json`."""
    files: Files

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array, (frames, …)."""
        return tuple(self.zarray.shape)

    @property
    def rows_per_read(self) -> int:
        """Number of frames that zarr decodes together."""
        return int((self.zarray.shards or self.zarray.chunks)[0])

    def find_faults(self, frames: int, *, accept_omitted: bool) -> Iterator[ChunkFault]:
        """Find missing (unless accepted) and damaged chunks of the first `frames` frames."""
        for fault in find_chunk_faults(self.files, self.name, self.zarray, self.metadata, frames):
            if not (fault.missing and accept_omitted):
                yield fault

    def check_chunks(self, frames: int, *, accept_omitted: bool = False) -> None:
        """Raise `DamagedStoreError` for missing and damaged chunks of the first `frames` frames."""
        for fault in self.find_faults(frames, accept_omitted=accept_omitted):
            if not fault.missing:
                raise DamagedStoreError(f"{fault}; restore it from the original")
            raise DamagedStoreError(
                f"{fault}, zarr would read {self.zarray.fill_value} there; restore it, or set "
                "accept_omitted_chunks if its writer omits chunks that hold only this value"
            )

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Decode the frames `start` to `stop`, (stop − start, …)."""
        try:
            return np.asarray(self.zarray[start:stop])
        except Exception as error:
            if stop - start > self.rows_per_read:  # name the frames of the first damaged chunk
                for row in range(start, stop, self.rows_per_read):
                    self.read(row, min(row + self.rows_per_read, stop))
            raise DamagedStoreError(
                f"{self.name}: frames {start} to {stop} cannot be decoded ({_format_brief(error)}); "
                "restore their chunk from the original"
            ) from error


def open_array(files: Files, name: str) -> StoredArray | None:
    """Open the array `name`, None if the store has no such array."""
    import zarr

    metadata = _read_array_metadata(files, name)
    if metadata is None:
        return None
    _check_codecs_and_dtype(name, metadata)
    try:
        zarray = zarr.open_array(store=files.store, path=files.prefix + name, mode="r")
        attributes = dict(zarray.attrs)
    except Exception as error:
        if _is_unknown_codec(error, metadata):
            raise ArrayError(f"{name} needs a codec that is not installed: {_format_brief(error)}") from error
        raise DamagedStoreError(f"the metadata of {name} is invalid ({_format_brief(error)})") from error
    if zarray.ndim == 0 or 0 in zarray.shape[1:] or 0 in zarray.chunks:
        raise ArrayError(f"{name} has shape {zarray.shape}, expected (frames, at least one column)")
    return StoredArray(name, attributes, zarray, metadata, files)


def find_arrays(files: Files, folder: str) -> list[str]:
    """Return the paths of all arrays below `folder`, readable or not."""
    found = []
    for child in files.children(folder):
        name = f"{folder}/{child}"
        try:
            is_array = _read_array_metadata(files, name) is not None
        except DamagedStoreError:
            is_array = True
        found += [name] if is_array else find_arrays(files, name)
    return found


def read_metadata(files: Files, key: str) -> dict[str, Any]:
    """Read a JSON object of the store; empty if the key does not exist."""
    size = files.size(key)
    if size is None:
        return {}
    if size > MAX_METADATA_BYTES:
        raise DamagedStoreError(f"{key} has {size} bytes, expected at most {MAX_METADATA_BYTES}")
    return parse_json(files.read(key), name=key, error=DamagedStoreError)


def _read_array_metadata(files: Files, name: str) -> dict[str, Any] | None:
    if files.size(f"{name}/.zarray") is not None:
        return read_metadata(files, f"{name}/.zarray")
    metadata = read_metadata(files, f"{name}/zarr.json")
    return metadata if metadata.get("node_type") == "array" else None


def _check_codecs_and_dtype(name: str, metadata: dict[str, Any]) -> None:
    """Reject arrays by their metadata alone, so that pickles are never loaded."""
    try:
        codecs = codec_names(metadata)
    except (AttributeError, TypeError) as error:
        raise DamagedStoreError(f"the metadata of {name} is invalid ({_format_brief(error)})") from error
    if any("pickle" in codec for codec in codecs):
        raise ArrayError(f"{name} is stored as pickles, which can run code; they are never loaded")
    dtype = metadata.get("dtype", metadata.get("data_type"))
    if dtype is None:
        raise DamagedStoreError(f"the metadata of {name} does not give a data type")
    if not (isinstance(dtype, str) and _REAL_DTYPE.fullmatch(dtype)):
        raise ArrayError(f"{name} holds {dtype!r}, expected real numbers")


def _is_unknown_codec(error: Exception, metadata: dict[str, Any]) -> bool:
    """Return whether zarr does not know a codec; versions before 3.1 raise other errors for it."""
    if type(error).__name__ == "UnknownCodecError" or "codec not available" in str(error):
        return True
    return isinstance(error, KeyError) and error.args[0] in codec_names(metadata)


def _format_brief(error: Exception) -> str:
    """Return the first line of a message, at most 120 characters."""
    return (str(error).splitlines() or [""])[0][:120] or type(error).__name__
