"""Tests of damaged HDF5 files: each kind is refused with a message that says what to do."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.data.check import check_store
from nsde_policy.data.images import open_images
from nsde_policy.errors import DemoError
from tests.helpers.damage import Damage, replace_by_pipe
from tests.helpers.demo_stores import edit_bytes
from tests.helpers.hdf5_files import LENGTHS, example, write_aloha, write_d4rl, write_jpeg, write_robomimic


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


def declare_many_frames(file: h5py.File) -> None:
    for name in LENGTHS:
        demo = file[f"data/{name}"]
        demo.attrs["num_samples"] = 10**12
        for key in ("actions", "states", *(f"obs/{key}" for key in demo["obs"])):
            shape, dtype = demo[key].shape[1:], demo[key].dtype
            del demo[key]
            demo.create_dataset(key, (10**12, *shape), dtype, chunks=(1, *shape))


def with_nan() -> np.ndarray:
    values = example("demo_2", 4)["obs/object"]
    values[1, 3] = np.nan
    return values


def damage_jpeg(file: h5py.File) -> None:
    file["observations/images/cam_high"][2, 30:] = 0


def change_jpeg_size(file: h5py.File) -> None:
    content = np.frombuffer(write_jpeg(np.zeros((8, 8, 3), np.uint8)), np.uint8)
    array = file["observations/images/cam_high"]
    array[2, : len(content)] = content[: array.shape[1]]


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
    Damage("empty file", on_bytes(lambda _: b""), "not an undamaged HDF5 file"),
    Damage("truncated", on_bytes(lambda content: content[: len(content) // 2]), "truncated file"),
    Damage("no HDF5", on_bytes(lambda _: b"PK" * 999), "file signature not found"),
    Damage("pipe", replace_by_pipe, "is not a regular file"),
    Damage(
        "other content",
        robomimic(lambda file: file.move("data", "x")),
        "holds: mask/train, x/.* expected",
    ),
    Damage(
        "no episodes",
        robomimic(lambda file: [file["data"].pop(k) for k in LENGTHS]),
        "holds: mask/train; ex",
    ),
    # episodes
    Damage(
        "no actions", robomimic(lambda f: f.pop("data/demo_10/actions")), "/data/demo_10 in .* has no actions"
    ),
    Damage("missing key", robomimic(lambda f: f.pop(POSITION)), "demo_2 in .* has no obs/robot0_eef_pos"),
    Damage(
        "missing key in the first",
        robomimic(lambda f: f.pop("data/demo_0/obs/object")),
        "demo_0 in .* has no",
    ),
    Damage(
        "unequal lengths", replace(OBJECT, np.ones((3, 10))), r"demo_2/obs/object .*\(3, 10\), .*\(4, 10\)"
    ),
    Damage("other columns", replace(OBJECT, np.ones((4, 9))), r"demo_2/obs/object .* \(4, 9\), expected"),
    Damage(
        "other type", replace(OBJECT, np.ones((4, 10), "f4")), "object in .* is float32 .* expected float64"
    ),
    Damage("scalar", replace(OBJECT, 1.0), r"object in .* is float64 \(\), expected"),
    Damage(
        "num_samples",
        robomimic(lambda f: f["data/demo_2"].attrs.update(num_samples=9)),
        "4 actions, but .* 9",
    ),
    Damage("one frame", lambda path: write_short(path), "episode 0 is too short"),
    # values
    Damage("NaN", replace(OBJECT, with_nan()), r"nan in obs/object\[3\] at frame 7 \(episode 1, step 1\)"),
    Damage("text", replace("data/demo_0/obs/object", np.array([b"x"] * 6)), "expected real numbers"),
    Damage("complex", replace("data/demo_0/obs/object", np.ones((6, 10), "c8")), "expected real numbers"),
    # metadata
    Damage(
        "no JSON",
        robomimic(lambda f: f["data"].attrs.update(env_args="{")),
        "env_args .* not valid JSON",
    ),
    Damage(
        "no rate",
        robomimic(lambda f: f["data"].attrs.update(env_args='{"env_kwargs": {"control_freq": "fast"}}')),
        "rate_hz must be a positive number .* 'fast'",
    ),
    # what could be unsafe, or huge
    Damage("external link", robomimic(add_external_link), "secret .* is not followed"),
    Damage("virtual dataset", robomimic(add_virtual), "secret .* is stored elsewhere"),
    Damage(
        "loop",
        robomimic(lambda f: f.update({"data/demo_2/obs/x": h5py.SoftLink("/data")})),
        "x .* is not followed",
    ),
    Damage("huge chunks", robomimic(declare_huge_chunks), "a chunk would take 1600000000 bytes"),
    Damage("huge arrays", robomimic(declare_many_frames), "frames would take"),
    Damage("unwritten chunks", robomimic(leave_chunks_unwritten), "object .* incomplete: 2 of 4 chunks"),
    # ALOHA
    Damage(
        "no qpos",
        aloha(lambda f: f.pop("observations/qpos")),
        "/ in .*episode_1.hdf5 has no observations/qpos",
    ),
    Damage(
        "only images",
        lambda path: write_images_only(path),
        "no array 'state' .* observations/images/cam_high",
    ),
    Damage(
        "mixed formats", aloha(lambda f: f.move("action", "actions")), "episode_1.hdf5 has neither terminals"
    ),
    Damage("broken JPEG", aloha(damage_jpeg), "cam_high .*, row 2, is not an undamaged JPEG"),
    Damage(
        "JPEG size",
        aloha(change_jpeg_size),
        r"row 2, is uint8 \(8, 8, 3\), not ",
    ),
    Damage("nested groups", aloha(nest_groups), "groups in groups, g/g/g"),
    Damage("huge PNG", aloha(enlarge_image), "row 2, is not an undamaged .* exceeds limit"),
    # D4RL
    Damage("no ends", d4rl(terminals=None, timeouts=None), "neither terminals nor timeouts"),
    Damage(
        "too few flags", d4rl(terminals=np.zeros(19, bool)), r"terminals in .* \(19,\), expected bool \(20,\)"
    ),
    Damage(
        "too few observations", d4rl(observations=np.zeros((18, 4))), r"observations in .* \(18, 4\), exp"
    ),
    Damage("ends in a row", d4rl(ends=(5, 6)), "episode 1 is too short"),
]


def write_short(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/x"], file["data/demo_0/actions"] = np.ones((1, 2)), np.ones((1, 2))
    return path


def write_images_only(path: Path) -> Path:
    folder = write_aloha(path.with_suffix(""), compress=False, episodes=1)
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        for name in ("qpos", "qvel", "effort"):
            del file[f"observations/{name}"]
    return folder


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_is_rejected(tmp_path: Path, damage: Damage) -> None:
    damage.check(tmp_path / "lift.hdf5", read_everything)


def test_the_command_line_lists_what_there_is_and_finds_every_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = robomimic(leave_chunks_unwritten)(tmp_path / "lift.hdf5")
    (found,) = check_store(path)
    assert f"/{OBJECT} in {path} is incomplete: 2 of 4 chunks were written" in found
    assert main(["data", "info", str(write_robomimic(path))]) == 0
    said = capsys.readouterr().out
    assert "3 episodes, 15 frames, 20 Hz" in said
    assert "can be cameras: --images obs/agentview_image" in said


def test_corrupted_bytes_raise_only_demo_errors(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        corrupted = np.frombuffer(whole, np.uint8).copy()
        corrupted[rng.integers(len(whole), size=4)] = rng.integers(256, size=4)
        path.write_bytes(corrupted.tobytes())
        try:
            demos = load_demonstrations(path)
        except DemoError:
            continue
        assert np.isfinite(demos.obs).all()
