"""Tests of videos: which rows windows hold, increments."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nsde_policy.data import open_images
from nsde_policy.data.frames import resize_frames
from nsde_policy.errors import DemoError
from nsde_video import collisions
from nsde_video.videos import Videos, open_videos
from tests.helpers.demo_stores import write_store

LENGTHS = (15, 10, 15)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Write three videos of 8 × 8 whose frames hold their row."""
    ends = np.cumsum(LENGTHS)
    rows = np.arange(ends[-1])
    images = np.broadcast_to(rows[:, None, None, None], (len(rows), 8, 8, 3)).astype(np.uint8)
    changes = {"data/img": images, "data/action": np.zeros((len(rows), 1)), "meta/episode_ends": ends}
    return write_store(tmp_path_factory.mktemp("videos") / "rows.zarr", changes)


@pytest.mark.parametrize("length", [1, 5, 10, 11])
def test_windows_are_all_those_inside_one_video(store, length):
    episode = np.repeat(np.arange(3), LENGTHS)
    expected = [s for s in range(41 - length) if episode[s] == episode[s + length - 1]]
    videos = open_videos(store, size=8)
    assert videos.find_windows(length).tolist() == expected
    windows = videos.to("cpu").windows(length)
    assert len(windows) == len(expected)
    batch = windows[torch.tensor([3, 0])].frames
    assert batch.shape == (2, length, 8, 8, 3)
    assert batch[:, :, 0, 0, 0].tolist() == [[*range(expected[k], expected[k] + length)] for k in (3, 0)]


def test_frames_are_resized_and_read_back_the_same_from_store_and_table(tmp_path):
    path = write_store(tmp_path / "s.zarr")
    expected = resize_frames(np.rint(open_images(path)[:]).astype(np.uint8), 6)
    starts = np.array([26, 0, 16])
    stored = open_videos(path, size=6)
    for videos in (stored, stored.to("cpu")):
        assert np.array_equal(videos.read(starts, 4), np.stack([expected[s : s + 4] for s in starts]))


def test_the_increment_is_the_root_mean_square_change_of_a_pixel(store):
    assert open_videos(store, size=8).increment_std() == pytest.approx(1 / 127.5, rel=1e-4)
    with pytest.raises(DemoError, match="nothing moves"):
        Videos.from_tensor(torch.zeros((2, 5, 8, 8, 3), dtype=torch.uint8)).increment_std()


def test_what_gives_no_window_is_refused(store, tmp_path):
    with pytest.raises(DemoError, match=r"longest of 3 videos has 15 frames, a window needs 16"):
        open_videos(store, size=8).find_windows(16)
    with pytest.raises(DemoError, match="no array 'data/img'"):
        open_videos(write_store(tmp_path / "a.zarr", {"data/img": None}), size=8)
    grey = np.zeros((40, 8, 8), np.uint8)
    with pytest.raises(DemoError, match=r"expected colour images"):
        open_videos(write_store(tmp_path / "b.zarr", {"data/img": grey}), size=8)
    lost = write_store(tmp_path / "d.zarr")
    (lost / "data" / "img" / "1.0.0.0").unlink()
    with pytest.raises(DemoError, match=r"is missing.*restore it"):
        open_videos(lost, size=8)


def test_simulated_videos_can_be_trained_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    flags = ["--videos", "3", "--frames", "5", "--size", "16"]
    monkeypatch.setattr(sys, "argv", ["collisions", str(tmp_path / "a.zarr"), *flags])
    collisions.main()
    videos = open_videos(tmp_path / "a.zarr", size=16)
    assert videos.lengths.tolist() == [5, 5, 5]
    assert videos.increment_std() > 0
