"""Tests for data/frames.py: resizing, and frames that are read back in any order with bounded memory."""

from pathlib import Path

import numpy as np
import pytest

from nsde_policy.data.frames import FrameFile, check_frames, describe_frame, read_resized, resize_frames
from nsde_policy.data.images import open_images
from nsde_policy.errors import DemoError
from tests.helpers.camera_robot import EPISODES, STEPS, make_arrays, write_camera_store
from tests.helpers.demo_stores import write_store


@pytest.mark.parametrize("shape", [(64, 48), (17, 90), (8, 8)])
def test_resizing_keeps_plain_colours_and_the_mean(shape: tuple[int, int]):
    plain = np.full((2, *shape, 3), (10, 128, 250), np.uint8)
    assert (resize_frames(plain, 32) == (10, 128, 250)).all()
    noise = np.random.default_rng(0).integers(0, 256, (1, *shape, 3)).astype(np.uint8)
    assert resize_frames(noise, 32).mean() == pytest.approx(noise.mean(), abs=3)


def test_resizing_by_a_whole_factor_keeps_positions():
    frame = np.zeros((1, 96, 96, 3), np.uint8)
    frame[0, 30:36, 60:66] = 240
    small = resize_frames(frame, 32)[0, :, :, 0]
    assert np.unravel_index(small.argmax(), small.shape) in {(10, 20), (11, 21), (10, 21), (11, 20)}
    assert np.mean(np.nonzero(small), axis=1) == pytest.approx([10.5, 20.5], abs=0.5)
    assert resize_frames(frame, 96) is frame


def test_frame_file_reads_any_frames_of_all_cameras(tmp_path: Path):
    store, arrays = write_camera_store(tmp_path / "store.zarr"), make_arrays()
    cameras = [open_images(store, key=name) for name in ("top", "wrist")]
    file = FrameFile(cameras, EPISODES * STEPS, size=32, folder=tmp_path / "run")
    index = np.array([70, 3, 3, 0])
    top, wrist = file.read(index)
    assert (top == arrays["top"][index]).all()
    assert (wrist == resize_frames(arrays["wrist"][index], 32)).all()
    assert not list((tmp_path / "run").iterdir()), "the file has no name, so that no crash leaves it behind"
    assert file.looks[0] == pytest.approx(
        np.array([describe_frame(frame) for frame in arrays["top"]]), rel=1e-6
    )
    same = [False, *(arrays["wrist"][1:] == arrays["wrist"][:-1]).all((1, 2, 3))]
    assert file.repeats[1].tolist() == same
    assert any(same)
    file.close()


def test_frames_are_resized_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, arrays = write_camera_store(tmp_path / "store.zarr"), make_arrays()
    monkeypatch.setattr("nsde_policy.data.frames.BLOCK_BYTES", 3 * arrays["wrist"][0].nbytes)
    resized = read_resized(open_images(store, key="wrist"), range(5, 13), 32)
    assert np.array_equal(resized, resize_frames(arrays["wrist"][5:13], 32))


def test_description_of_a_frame():
    stripes = np.zeros((300, 10, 3), np.uint8)
    stripes[:, 1::2] = 100
    assert describe_frame(stripes) == pytest.approx([50, 50, 100])
    assert describe_frame(np.full((4, 1, 3), 7, np.uint8)) == pytest.approx([7, 0, 0])


def test_arrays_that_are_no_colour_images_are_refused(tmp_path: Path):
    store = write_store(tmp_path / "store.zarr", {"data/img": np.ones((40, 8, 8), np.uint8)})
    with pytest.raises(DemoError, match=r"data/img has shape \(40, 8, 8\), expected colour images"):
        check_frames(open_images(store), "img")
