"""Tests of windows of videos: which rows they hold, where they are drawn, split, increments."""

import numpy as np
import pytest
import torch

from nsde_policy.data import open_images
from nsde_policy.data.frames import resize_frames
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.video import windows
from nsde_policy.video.windows import Videos, open_videos
from tests.helpers.demo_stores import write_store

LENGTHS = (15, 10, 15)
ENDS = np.cumsum(LENGTHS)


def make_numbered(*, device="cpu", videos=4, length=12):
    """Make videos whose frames all hold their row."""
    rows = torch.arange(videos * length, dtype=torch.uint8, device=device).reshape(videos, length, 1, 1, 1)
    return Videos.from_tensor(rows.expand(-1, -1, 8, 8, 3).clone())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Write three videos of 8 × 8 whose frames hold their row."""
    rows = np.arange(ENDS[-1])
    images = np.broadcast_to(rows[:, None, None, None], (len(rows), 8, 8, 3)).astype(np.uint8)
    changes = {"data/img": images, "data/action": np.zeros((len(rows), 1)), "meta/episode_ends": ENDS}
    return write_store(tmp_path_factory.mktemp("videos") / "rows.zarr", changes)


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (5, 1), (3, 4), (10, 1), (11, 1)])
def test_windows_are_all_those_inside_one_video(store, length, stride):
    reach = stride * (length - 1)
    episode = np.repeat(np.arange(3), LENGTHS)
    expected = [s for s in range(40 - reach) if episode[s] == episode[s + reach]]
    videos = open_videos(store, size=8, stride=stride)
    assert videos.find_windows(length).tolist() == expected
    chosen = [s for s in expected if episode[s] in (0, 2)]
    assert videos.select([0, 2]).find_windows(length).tolist() == chosen


def test_a_source_draws_every_window_and_nothing_else(store):
    videos = open_videos(store, size=8, stride=3)
    source = videos.to("cpu").source(4, 32)
    generator, seen = torch.Generator().manual_seed(0), set()
    for _ in range(20):
        batch = source.draw(generator)
        assert batch.frames.shape == (32, 4, 8, 8, 3)
        assert batch.frames.dtype == torch.uint8
        rows = batch.frames[:, :, 0, 0, 0].long()
        assert (rows.diff(dim=1) == 3).all()
        seen |= {*rows[:, 0].tolist()}
    assert sorted(seen) == videos.find_windows(4).tolist()


def test_frames_that_do_not_fit_into_memory_are_refused(store, monkeypatch):
    monkeypatch.setattr(windows, "_measure_memory", lambda device: 15_000)
    with pytest.raises(DemoError, match=r"take 0.0 GB, at most 0.0 GB fit on the device cpu: .*--size"):
        open_videos(store, size=8).to("cpu")


def test_frames_are_resized_and_read_back_the_same_from_store_and_table(tmp_path):
    path = write_store(tmp_path / "s.zarr")
    expected = resize_frames(np.rint(open_images(path)[:]).astype(np.uint8), 6)
    starts = np.array([26, 0, 16])
    videos = open_videos(path, size=6, stride=2)
    for each in (videos, videos.to("cpu")):
        found = each.read(starts, 4).frames.numpy()
        assert np.array_equal(found, np.stack([expected[s : s + 8 : 2] for s in starts]))


def test_whole_videos_are_held_out():
    videos = make_numbered(videos=5)
    training = videos.hold_out(0.4)
    assert len(training) == 3
    assert sorted([*training.chosen, *training.left_out]) == [0, 1, 2, 3, 4]
    batch = training.source(12, 50).draw(torch.Generator().manual_seed(0))
    assert {*batch.frames[:, 0, 0, 0, 0].tolist()} == {12 * video for video in training.chosen.tolist()}
    assert videos.hold_out(0) is videos
    assert len(videos.hold_out(0.001)) == 4
    with pytest.raises(ConfigError, match="at least 2 videos"):
        make_numbered(videos=1).hold_out(0.5)


def test_the_increment_is_the_root_mean_square_change_of_a_pixel(store):
    assert open_videos(store, size=8).increment_std() == pytest.approx(1 / 127.5, rel=1e-4)
    assert open_videos(store, size=8, stride=4).increment_std() == pytest.approx(4 / 127.5, rel=1e-4)
    with pytest.raises(DemoError, match="nothing moves"):
        Videos.from_tensor(torch.zeros((2, 5, 8, 8, 3), dtype=torch.uint8)).increment_std()


def test_what_gives_no_window_is_refused(store, tmp_path):
    videos = open_videos(store, size=8, stride=4)
    with pytest.raises(DemoError, match=r"longest of 3 videos has 4 frames .* needs 5"):
        videos.find_windows(5)
    with pytest.raises(DemoError, match="no array 'data/img'"):
        open_videos(write_store(tmp_path / "a.zarr", {"data/img": None}), size=8)
    grey = np.zeros((40, 8, 8), np.uint8)
    with pytest.raises(DemoError, match=r"expected colour images"):
        open_videos(write_store(tmp_path / "b.zarr", {"data/img": grey}), size=8)
    lost = write_store(tmp_path / "d.zarr")
    (lost / "data" / "img" / "1.0.0.0").unlink()
    with pytest.raises(DemoError, match=r"is missing.*restore it"):
        open_videos(lost, size=8)


@pytest.mark.gpu
def test_a_captured_graph_draws_other_windows_with_each_replay():
    videos = make_numbered(device="cuda", videos=20)
    source = videos.source(5, 16)
    generator = torch.Generator("cuda").manual_seed(0)
    source.draw(generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        batch = source.draw(generator)
    seen = set()
    for _ in range(50):
        graph.replay()
        rows = batch.frames[:, :, 0, 0, 0].long()
        assert (rows.diff(dim=1) == 1).all()
        seen |= {*rows[:, 0].tolist()}
    assert seen == {*videos.find_windows(5).tolist()}
