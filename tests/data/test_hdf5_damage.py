"""Tests of damaged HDF5 files: each kind is refused with a message that says what to do."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.data.images import open_images
from tests.helpers.damage import Damage
from tests.helpers.demo_stores import edit_bytes
from tests.helpers.hdf5_files import LENGTHS, example, write_aloha, write_d4rl, write_robomimic


def robomimic(change: Callable[[h5py.File], object]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        with h5py.File(write_robomimic(path), "a") as file:
            change(file)
        return path

    return make


def replace(name: str, values: Any) -> Callable[[Path], Path]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = values

    return robomimic(change)


def on_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        edit_bytes(write_robomimic(path), change)
        return path

    return make


def aloha(change: Callable[[h5py.File], object], episode: int = 1) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        folder = write_aloha(path.with_suffix(""), compress=True, episodes=3)
        with h5py.File(folder / f"episode_{episode}.hdf5", "a") as file:
            change(file)
        return folder

    return make


def d4rl(**change: Any) -> Callable[[Path], Path]:
    return lambda path: write_d4rl(path, **change)


def add_external_link(file: h5py.File) -> None:
    file["data/demo_2/obs/secret"] = h5py.ExternalLink("other.hdf5", "/data")


def add_virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4, 2), float)
    layout[:] = h5py.VirtualSource("other.hdf5", "x", (4, 2))
    file["data/demo_2"].create_virtual_dataset("obs/secret", layout)


def leave_chunks_unwritten(file: h5py.File) -> None:
    del file["data/demo_2/obs/object"]
    array = file["data/demo_2"].create_dataset("obs/object", (4, 10), float, chunks=(1, 10))
    array[:2] = 1


def declare_huge_chunks(file: h5py.File) -> None:
    for name, frames in LENGTHS.items():
        del file[f"data/{name}/obs/object"]
        file[f"data/{name}"].create_dataset(
            "obs/object", (frames, 10), float, chunks=(20_000_000, 10), maxshape=(None, 10)
        )


def with_nan() -> np.ndarray:
    values = example("demo_2", 4)["obs/object"]
    values[1, 3] = np.nan
    return values


def damage_jpeg(file: h5py.File) -> None:
    file["observations/images/cam_high"][2, 30:] = 0


def enlarge_image(file: h5py.File) -> None:
    """Write the beginning of a PNG of 95 million pixels."""
    header = b"IHDR" + struct.pack(">2I5B", 10_000, 9_500, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    png += struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    file["observations/images/cam_high"][2, : len(png)] = np.frombuffer(png, np.uint8)


def nest_groups(file: h5py.File) -> None:
    group: Any = file
    for _ in range(50):
        group = group.create_group("g")


OBJECT, POSITION = "data/demo_2/obs/object", "data/demo_2/obs/robot0_eef_pos"


def read_everything(path: Path) -> None:
    load_demonstrations(path)
    if path.is_dir():
        open_images(path, key="observations/images/cam_high")[:]


DAMAGES = [
    # the file
    Damage("missing file", lambda path: path, "lift.hdf5 cannot be read: No such file"),
    Damage("truncated", on_bytes(lambda content: content[: len(content) // 2]), "truncated file"),
    # episodes
    Damage(
        "no actions", robomimic(lambda f: f.pop("data/demo_10/actions")), "/data/demo_10 in .* has no actions"
    ),
    Damage("missing key", robomimic(lambda f: f.pop(POSITION)), "demo_2 in .* has no obs/robot0_eef_pos"),
    Damage(
        "unequal lengths", replace(OBJECT, np.ones((3, 10))), r"demo_2/obs/object .*\(3, 10\), .*\(4, 10\)"
    ),
    # values
    Damage("NaN", replace(OBJECT, with_nan()), r"nan in obs/object\[3\] at frame 7 \(episode 1, step 1\)"),
    # metadata
    # what could be unsafe, or huge
    Damage("external link", robomimic(add_external_link), "secret .* is not followed"),
    Damage("virtual dataset", robomimic(add_virtual), "secret .* is stored elsewhere"),
    Damage("huge chunks", robomimic(declare_huge_chunks), "a chunk would take 1600000000 bytes"),
    Damage("unwritten chunks", robomimic(leave_chunks_unwritten), "object .* incomplete: 2 of 4 chunks"),
    # ALOHA
    Damage("broken JPEG", aloha(damage_jpeg), "cam_high .*, row 2, is not an undamaged JPEG"),
    Damage("nested groups", aloha(nest_groups), "groups in groups, g/g/g"),
    Damage("huge PNG", aloha(enlarge_image), "row 2, is not an undamaged .* exceeds limit"),
    # D4RL
    Damage("no ends", d4rl(terminals=None, timeouts=None), "neither terminals nor timeouts"),
    Damage(
        "too few flags", d4rl(terminals=np.zeros(19, bool)), r"terminals in .* \(19,\), expected bool \(20,\)"
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_is_rejected(tmp_path: Path, damage: Damage) -> None:
    damage.check(tmp_path / "lift.hdf5", read_everything)
