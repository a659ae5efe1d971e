"""Small stores of demonstrations, written by zarr itself and not by the package."""

import io
import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

Array = npt.NDArray[Any]
FRAMES = 40
ENDS = (15, 25, 40)
INSIDE = "pusht/pusht_cchi_v7_replay.zarr/"
"""Where the public archive of the human demonstrations holds its store."""


def example_arrays() -> dict[str, Array]:
    """Three episodes of a five-column state with a wrapped angle, actions, keypoints and images."""
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
    """Write the example, with arrays replaced (or left out, where None); chunks hold 10 frames."""
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


def zipped(path: Path, *, inside: str = ".") -> Path:
    """A zip of a store, at its top or in a folder."""
    target = shutil.make_archive(
        str(path), "zip", root_dir=path.parent if inside != "." else path, base_dir=inside
    )
    return Path(target)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a store, by its path in it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def packed(
    files: Mapping[str, bytes],
    *,
    inside: str = INSIDE,
    extra: Iterable[tuple[str | zipfile.ZipInfo, bytes]] = (),
) -> bytes:
    """A zip of a store's files in a folder, with further members behind them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pusht/", b"")
        for name, content in files.items():
            archive.writestr(inside + name, content)
        for member, content in extra:
            archive.writestr(member, content)
    return buffer.getvalue()


def edit_bytes(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Rewrite one file of a store."""
    path.write_bytes(change(path.read_bytes()))


def flip(content: bytes, at: int) -> bytes:
    """The same bytes but for one bit."""
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]
