"""Tests for data/images.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.data import open_images
from nsde_policy.data.check import check_store
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import example_arrays, write_store, zip_store


@pytest.mark.parametrize("in_a_zip", [False, True])
def test_slices_are_read_as_uint8(tmp_path: Path, in_a_zip: bool) -> None:
    path = write_store(tmp_path / "demos.zarr")
    frames = open_images(zip_store(path) if in_a_zip else path)
    expected = example_arrays()["data/img"].astype(np.uint8)

    assert (len(frames), frames.shape, frames.dtype) == (40, (40, 8, 8, 3), np.uint8)
    assert frames[3:17].dtype == np.uint8
    np.testing.assert_array_equal(frames[3:17], expected[3:17])
    np.testing.assert_array_equal(frames[-1], expected[-1])
    assert frames[7:7].shape == (0, 8, 8, 3)
    assert frames[30:99].shape == (10, 8, 8, 3)
    for index in (40, -41, slice(0, 10, 2)):
        with pytest.raises(IndexError):
            frames[index]


def test_chunks_must_exist_and_only_requested_ones_are_decoded(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr", compressors={"id": "zstd", "level": 1})
    frames = open_images(path)
    (path / "data/img/3.0.0.0").write_bytes(b"damaged after opening")
    assert frames[0:30].shape == (30, 8, 8, 3)
    with pytest.raises(DemoError, match="frames 30 to 40"):
        frames[20:40]
    (path / "data/img/2.0.0.0").unlink()
    with pytest.raises(DemoError, match=r"2\.0\.0\.0 is missing"):
        open_images(path)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.full((40, 4, 4, 3), 256.0), r"256.0 at frame 0, expected 0 to 255"),
        (np.full((40, 4, 4, 3), np.nan), "nan at frame 0"),
        (np.full((40, 4, 4, 3), 0.6, np.float32), r"float32 images from 0 to 0.6.*by 255 and"),
        (np.full((40, 4, 4, 3), True), r"data/img holds bool images.*multiply them by 255"),
        (np.ones((40, 4)), "expected images"),
    ],
)
def test_other_arrays_are_rejected(tmp_path: Path, images: Any, message: str) -> None:
    path = write_store(tmp_path / "demos.zarr", {"data/img": images})
    with pytest.raises(DemoError, match=message):
        open_images(path)[0:2]


def test_dark_frames_of_a_bright_camera_are_read(tmp_path: Path) -> None:
    images = np.full((40, 4, 4, 3), 200, np.float32)
    images[:10] = 0
    images[10:20] = 0.7
    path = write_store(tmp_path / "demos.zarr", {"data/img": images})
    assert check_store(path) == []
    frames = open_images(path)
    assert [int(frames[i].max()) for i in (0, 30, 12)] == [0, 200, 1]


@pytest.mark.parametrize(("kind", "brightest"), [(np.float32, 0.6), (np.int64, 1), (bool, 1)])
def test_check_finds_images_of_another_scale(tmp_path: Path, kind: type, brightest: float) -> None:
    images = np.zeros((40, 4, 4, 3), kind)
    images[20] = brightest
    (problem,) = check_store(write_store(tmp_path / "demos.zarr", {"data/img": images}))
    assert problem.startswith(f"data/img holds {images.dtype} images from 0 to {brightest}")
