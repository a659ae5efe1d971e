"""Tests for data/images.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.data import DemoWriter, open_images
from nsde_policy.data.zarr_store.check import check_store
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import example_arrays, write_store, zip_store
from tests.helpers.numbered_episodes import make_episode


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


def test_only_requested_chunks_are_decoded(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr", compressors={"id": "zstd", "level": 1})
    frames = open_images(path)
    (path / "data/img/3.0.0.0").write_bytes(b"damaged after opening")
    assert frames[0:30].shape == (30, 8, 8, 3)
    with pytest.raises(DemoError, match="frames 30 to 40"):
        frames[20:40]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (np.full((40, 4, 4, 3), 256.0), DemoError, r"256.0 at frame 0 is not a brightness"),
        (np.full((40, 4, 4, 3), np.nan), DemoError, "nan at frame 0"),
        (np.full((40, 4, 4, 3), -3), DemoError, "-3 at frame 0"),
        (np.full((40, 4, 4, 3), 0.6, np.float32), DemoError, r"float32 images from 0 to 0.6.*by 255 and"),
        (np.full((40, 4, 4, 3), True), DemoError, r"data/img holds bool images.*multiply them by 255"),
        (np.ones((40, 4)), DemoError, "expected images"),
        (np.ones((39, 4, 4)), DemoError, "overruns the 39 frames"),
    ],
)
def test_other_arrays_are_rejected(tmp_path: Path, change: Any, error: type[Exception], message: str) -> None:
    path = write_store(tmp_path / "demos.zarr", {"data/img": change})
    with pytest.raises(error, match=message):
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
def test_images_of_another_scale_are_found_and_not_recorded(tmp_path: Path, kind: type, brightest: float):
    images = np.zeros((40, 4, 4, 3), kind)
    images[20] = brightest
    (problem,) = check_store(write_store(tmp_path / "demos.zarr", {"data/img": images}))
    assert problem.startswith(f"data/img holds {images.dtype} images from 0 to {brightest}")
    with DemoWriter(tmp_path / "own.zarr") as writer:
        with pytest.raises(DemoError, match=r"multiply them by 255 .* nothing of this episode"):
            writer.append(make_episode(0), {"img": images[:7] + images[20]})
        writer.append(make_episode(0), {"img": 255 * images[:7].astype(np.uint8), "mask": images[:7, ..., 0]})


def test_missing_chunk_is_detected_when_opening(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr")
    (path / "data/img/2.0.0.0").unlink()
    with pytest.raises(DemoError, match=r"2\.0\.0\.0 is missing"):
        open_images(path)


def test_frames_of_the_human_demonstrations(human_demos: Path) -> None:
    frames = open_images(human_demos)
    assert frames.shape == (25_650, 96, 96, 3)
    assert frames[160:162].max() == 255
