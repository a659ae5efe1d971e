"""Tests of UMI's `.zarr.zip` stores, whose images are JPEG XL; written by zarr and imagecodecs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from imagecodecs.numcodecs import Jpegxl, register_codecs

from nsde_policy.data import load_demonstrations
from nsde_policy.data.check import check_store
from nsde_policy.data.images import open_images
from nsde_policy.data.summary import summarize
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import zip_store

FRAMES, ENDS = 12, (5, 12)
CAMERA = "data/camera0_rgb"
LOW = ["robot0_eef_pos", "robot0_eef_rot_axis_angle", "robot0_gripper_width"]


def make_images() -> np.ndarray:
    ramp = np.arange(FRAMES * 24 * 32).reshape(FRAMES, 24, 32, 1) % 200
    return (ramp + np.array([0, 20, 40])).astype(np.uint8)


def write_umi(path: Path) -> Path:
    """Write the arrays of UMI's replay buffer, one image per chunk."""
    register_codecs(verbose=False)
    group = zarr.open_group(path, mode="w", zarr_format=2)
    rng = np.random.default_rng(0)
    widths = dict(zip(LOW, (3, 3, 1), strict=True)) | {"robot0_demo_start_pose": 6, "robot0_demo_end_pose": 6}
    for name, width in widths.items():
        values = rng.normal(size=(FRAMES, width)).astype(np.float32)
        group.create_array(f"data/{name}", data=values, chunks=(FRAMES, width))
    shape = (FRAMES, 24, 32, 3)
    images = group.create_array(
        CAMERA, shape=shape, chunks=(1, 24, 32, 3), dtype="u1", compressors=Jpegxl(level=99, numthreads=1)
    )
    images[:] = make_images()
    group.create_array("meta/episode_ends", data=np.array(ENDS))
    return path


def test_images_and_arrays_are_read_from_the_zip(tmp_path: Path) -> None:
    path = zip_store(write_umi(tmp_path / "dataset.zarr"))
    np.testing.assert_array_equal(open_images(path, key="camera0_rgb")[:], make_images())
    assert check_store(path) == []
    summary = summarize(path)
    assert (summary.episodes, summary.videos) == (2, ("camera0_rgb",))
    demos = load_demonstrations(path, obs_keys=LOW[:2], act_key=LOW[2])
    assert (demos.obs.shape, demos.act.shape) == ((12, 6), (12, 1))


def test_without_imagecodecs_only_the_images_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_umi(tmp_path / "dataset.zarr")
    monkeypatch.setitem(sys.modules, "imagecodecs.numcodecs", None)
    assert len(load_demonstrations(path, obs_keys=LOW[:2], act_key=LOW[2])) == 2
    with pytest.raises(DemoError, match=r"camera0_rgb holds .*pip install 'imagecodecs"):
        open_images(path, key="camera0_rgb")


def test_an_unknown_codec_is_named(tmp_path: Path) -> None:
    path = write_umi(tmp_path / "dataset.zarr")
    metadata = path / CAMERA / ".zarray"
    content = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**content, "compressor": {"id": "imagecodecs_none"}}))
    with pytest.raises(DemoError, match="imagecodecs_none"):
        open_images(path, key="camera0_rgb")
