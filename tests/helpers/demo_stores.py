"""Small stores of demonstrations, written by zarr itself instead of the package."""

import io
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

Array = npt.NDArray[Any]
FRAMES = 40
ENDS = (15, 25, 40)
INSIDE = "pusht/pusht_cchi_v7_replay.zarr/"
"""Folder of the store in the public archive of human demonstrations."""


def example_arrays() -> dict[str, Array]:
    """Return three episodes: a five-column state with a wrapped angle, actions, keypoints and images."""
    rng = np.random.default_rng(0)
    state = rng.uniform(1, 500, (FRAMES, 5)).astype(np.float32)
    state[:, 4] = np.linspace(0.1, 15, FRAMES) % (2 * np.pi)
    return {
        "data/state": state,
        "data/action": rng.uniform(1, 500, (FRAMES, 2)),
        "data/keypoint": rng.uniform(1, 500, (FRAMES, 9, 2)).astype(np.float32),
        "data/img": rng.integers(1, 255, (FRAMES, 8, 8, 3)).astype(np.float32),
        "meta/episode_ends": np.array(ENDS),
    }


def write_store(
    path: Path,
    change: Mapping[str, Array | None] | None = None,
    *,
    zarr_format: int = 2,
    attributes: Mapping[str, Any] | None = None,
    every_chunk: bool = True,
    **options: Any,
) -> Path:
    """Write the example with some arrays replaced, or left out if None; chunks hold 10 frames."""
    arrays = {**example_arrays(), **(change or {})}
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format, attributes=dict(attributes or {}))
    for name, values in arrays.items():
        if values is None:
            continue
        rows = max(1, min(10, len(values)))
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=(rows, *(max(1, n) for n in values.shape[1:])),
            config={"write_empty_chunks": every_chunk},
            **(options if name.startswith("data/") else {}),
        )
        array[...] = values
    return path


def zip_store(path: Path, *, inside: str = ".") -> Path:
    """Write a zip of a store, at its top or in a folder."""
    target = shutil.make_archive(
        str(path), "zip", root_dir=path.parent if inside != "." else path, base_dir=inside
    )
    return Path(target)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder by their path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def zip_files(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of files in a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pusht/", b"")
        for name, content in files.items():
            archive.writestr(INSIDE + name, content)
    return buffer.getvalue()


def edit_bytes(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the content of a file."""
    path.write_bytes(change(path.read_bytes()))


def flip_bit(content: bytes, at: int) -> bytes:
    """Return the bytes with one bit flipped."""
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]
