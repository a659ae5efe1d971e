"""Tests of sets of videos: which files belong to them, and the stores that are written from them."""

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import DemoWriter, open_images
from nsde_policy.data.check import check_store
from nsde_policy.data.video_files import FrameConfig, read_video
from nsde_policy.data.video_sets import (
    CLEVRER_NUMBERS,
    KTH_PERSONS,
    find_clevrer,
    find_kth,
    find_videos,
    write_videos,
)
from nsde_policy.data.zarr_store.store import Store
from nsde_policy.errors import DemoError
from tests.helpers.video_files import write_clevrer, write_kth, write_scene

SMALL = FrameConfig(size=16)


@pytest.fixture(scope="module")
def kth(tmp_path_factory):
    """Write videos of five persons and two actions."""
    return write_kth(tmp_path_factory.mktemp("kth"), [11, 18, 1, 22, 2], actions=("walking", "boxing"))


def read_store(path, name):
    with Store(path) as store:
        array = store.open_path(name)
        return array.read(0, array.shape[0])


def test_the_split_of_kth_is_by_person(kth, tmp_path):
    assert sorted(sum(KTH_PERSONS.values(), ())) == [*range(1, 26)]
    found = {split: {item.info["person"] for item in find_kth(kth, split).items} for split in KTH_PERSONS}
    assert found == {"train": {11, 18}, "validation": {1}, "test": {2, 22}}
    flat = write_kth(tmp_path, [11], flat=True)
    (item,) = find_kth(flat, "train").items
    assert item.info == {"person": 11, "action": 5, "scenario": 1}


def test_kth_is_written_with_its_frames_and_numbers(kth, tmp_path):
    out = tmp_path / "kth.zarr"
    report = write_videos(find_kth(kth, "test"), out, SMALL)
    assert (report.videos, report.added, report.frames, report.rate_hz) == (4, 4, 40, 25)
    images = open_images(out)
    names = ["person02_boxing", "person02_walking", "person22_boxing", "person22_walking"]
    for k, name in enumerate(names):
        path = kth / name.partition("_")[2] / f"{name}_d1_uncomp.avi"
        assert np.array_equal(images[10 * k : 10 * k + 10], read_video(path, SMALL)[0])
    assert read_store(out, "meta/episode_person").tolist() == [2, 2, 22, 22]
    assert read_store(out, "meta/episode_action").tolist() == [0, 5, 0, 5]
    assert check_store(out) == []


def test_sequences_of_kth_become_videos(tmp_path):
    write_kth(tmp_path, [11, 12])
    (tmp_path / "00sequences.txt").write_text(
        "Training:   person11, 12\n\nperson11_walking_d1\t\tframes\t1-4, 5-10, 3-99\n"
        "person13_handclapping_d3 *missing*\n"
    )
    videos, out = find_kth(tmp_path, "train"), tmp_path / "kth.zarr"
    assert write_videos(videos, out, SMALL).videos == 4
    assert read_store(out, "meta/episode_ends").tolist() == [4, 10, 18, 28]
    (whole,) = read_video(tmp_path / "walking/person11_walking_d1_uncomp.avi", SMALL)
    expected = np.concatenate([whole[:4], whole[4:], whole[2:]])
    assert np.array_equal(open_images(out)[:18], expected)
    made_with = {"by": "video", **videos.settings, **SMALL.to_dict()}
    with DemoWriter(out, resume=True, rate_hz=25.0, made_with=made_with) as writer:
        for _ in range(3):  # as if writing had stopped after the first sequence
            writer.drop_last()
    assert write_videos(videos, out, SMALL).added == 3
    assert np.array_equal(open_images(out)[:18], expected)


def test_clevrer_is_found_by_number_and_subsampled(tmp_path):
    write_clevrer(tmp_path, [1003, 0, 10_000, 15_000])
    found = {
        split: [i.info["video"] for i in find_clevrer(tmp_path, split).items] for split in CLEVRER_NUMBERS
    }
    assert found == {"train": [0, 1003], "validation": [10_000], "test": [15_000]}
    out = tmp_path / "c.zarr"
    report = write_videos(find_clevrer(tmp_path, "train"), out, FrameConfig(size=16, stride=5))
    assert (report.videos, report.frames, report.rate_hz) == (2, 8, 5)
    path = tmp_path / "video_train/video_01000-02000/video_01003.mp4"
    assert np.array_equal(open_images(out)[4:], read_video(path, SMALL)[0][::5])


def test_a_folder_is_searched_for_videos_of_any_format(tmp_path):
    for k, name in enumerate(["b.avi", "a/x.MP4", "a/y.webm", ".hidden/z.avi", "a/._x.mp4"]):
        write_scene(tmp_path / name.lower(), k)
    (tmp_path / "a/x.mp4").rename(tmp_path / "a/x.MP4")
    (tmp_path / "notes.txt").write_text("no video")
    assert [item.name for item in find_videos(tmp_path).items] == ["a/x.MP4", "a/y.webm", "b.avi"]
    assert [item.name for item in find_videos(tmp_path / "b.avi").items] == ["b.avi"]
    assert write_videos(find_videos(tmp_path), tmp_path / "f.zarr", SMALL).videos == 3


def test_writing_continues_where_it_stopped_and_adds_new_files(kth, tmp_path):
    videos, out, full = find_kth(kth, "train"), tmp_path / "a.zarr", tmp_path / "b.zarr"

    def stop_after_two(items):
        yield from items[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_videos(videos, out, SMALL, progress=stop_after_two)
    assert len(open_images(out)) == 20
    assert write_videos(videos, out, SMALL).added == 2
    assert write_videos(videos, out, SMALL).added == 0
    write_videos(videos, full, SMALL)
    assert np.array_equal(open_images(out)[:], open_images(full)[:])
    with pytest.raises(DemoError, match="made with size 16, not 32"):
        write_videos(videos, out, FrameConfig(size=32))
    with pytest.raises(DemoError, match='made with split "train", not "test"'):
        write_videos(find_kth(kth, "test"), out, SMALL)


def test_a_damaged_video_and_one_of_another_rate_stop_writing(tmp_path):
    write_scene(tmp_path / "a.avi", 1)
    write_scene(tmp_path / "b.avi", 1, 10, rate=10)
    with pytest.raises(DemoError, match=r"b\.avi has 10 frames per second, the first video has 25; convert"):
        write_videos(find_videos(tmp_path), tmp_path / "x.zarr", SMALL)
    (tmp_path / "b.avi").write_bytes((tmp_path / "a.avi").read_bytes()[:-1500])
    with pytest.raises(DemoError, match=r"b\.avi is damaged"):
        write_videos(find_videos(tmp_path), tmp_path / "y.zarr", SMALL)


def test_sequences_that_cannot_be_read_are_refused(tmp_path):
    write_kth(tmp_path, [11])
    (tmp_path / "00sequences.txt").write_bytes(b"x")
    with pytest.raises(DemoError, match="no lines like"):
        find_kth(tmp_path, "train")


def test_missing_parts_of_a_set_are_named(tmp_path):
    write_kth(tmp_path / "kth", [11])
    write_clevrer(tmp_path / "clevrer", [0])
    with pytest.raises(DemoError, match=r"holds no videos; expected person01.* of the test persons 2, 3"):
        find_kth(tmp_path / "kth", "test")
    with pytest.raises(DemoError, match=r"folder .*video_test does not exist"):
        find_clevrer(tmp_path / "clevrer", "test")
    with pytest.raises(DemoError, match="does not exist"):
        find_videos(tmp_path / "none")
    write_scene(tmp_path / "clevrer/video_validation/video_00001.mp4", 1)
    with pytest.raises(DemoError, match="holds no videos; expected video_10000"):
        find_clevrer(tmp_path / "clevrer", "validation")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DemoError, match="holds no videos; expected files that end with"):
        find_videos(tmp_path / "empty")


def test_commands_print_what_the_store_holds(kth, tmp_path, capsys):
    out = str(tmp_path / "k.zarr")
    command = ["video", "data", "kth", str(kth), "--split", "validation", "--size", "16", "--out", out]
    assert main(command) == 0
    assert f"OK: {out} holds 2 videos (2 new), 20 frames of 16 × 16, 25 Hz" in capsys.readouterr().out
    assert main(command) == 0
    assert "holds 2 videos (0 new)" in capsys.readouterr().out
    assert main(["data", "info", out]) == 0
    text = capsys.readouterr().out
    assert "for `nsde-policy video train`: img" in text
    assert "--obs-keys" not in text
    assert "--images" not in text
    assert main(["data", "check", out]) == 0
    assert main([*command, "--size", "100000"]) == 2
    assert capsys.readouterr().err.endswith("need size <= 4096, got 100000\n")
