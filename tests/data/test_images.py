"""Tests for data/images.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.data import open_images
from nsde_policy.errors import ArrayError, DamagedStoreError, EpisodeError
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


def test_only_requested_chunks_are_decoded(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr", compressors={"id": "zstd", "level": 1})
    frames = open_images(path)
    (path / "data/img/3.0.0.0").write_bytes(b"damaged after opening")
    assert frames[0:30].shape == (30, 8, 8, 3)
    with pytest.raises(DamagedStoreError, match="frames 30 to 40"):
        frames[20:40]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (np.full((40, 4, 4, 3), 256.0), EpisodeError, r"256.0 at frame 0 is not a brightness"),
        (np.full((40, 4, 4, 3), np.nan), EpisodeError, "nan at frame 0"),
        (np.full((40, 4, 4, 3), -3), EpisodeError, "-3 at frame 0"),
        (np.ones((40, 4)), ArrayError, "expected images"),
        (np.ones((39, 4, 4)), EpisodeError, "overruns the 39 frames"),
    ],
)
def test_other_arrays_are_rejected(tmp_path: Path, change: Any, error: type[Exception], message: str) -> None:
    path = write_store(tmp_path / "demos.zarr", {"data/img": change})
    with pytest.raises(error, match=message):
        open_images(path)[0:2]


def test_missing_chunk_is_detected_when_opening(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr")
    (path / "data/img/2.0.0.0").unlink()
    with pytest.raises(DamagedStoreError, match=r"2\.0\.0\.0 is missing"):
        open_images(path)


def test_frames_of_the_human_demonstrations(human_demos: Path) -> None:
    frames = open_images(human_demos)
    assert frames.shape == (25_650, 96, 96, 3)
    assert frames[160:162].max() == 255
