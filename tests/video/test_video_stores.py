"""Tests of video files as stores: decoding, damage, KTH and folders, and `video data`."""

import struct

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import open_images
from nsde_policy.data.check import check_store
from nsde_policy.data.frames import resize_frames
from nsde_policy.data.zarr_store.store import Store
from nsde_policy.errors import DemoError
from nsde_policy.files import MAX_UNPACKED_VARIABLE
from nsde_policy.video.video_stores import (
    KTH_PERSONS,
    FrameConfig,
    find_videos,
    read_rate,
    read_video,
    write_videos,
)
from tests.helpers.video_files import CODECS, draw_scene, write_kth, write_scene, write_video

SMALL = FrameConfig(size=24)


@pytest.fixture(scope="module")
def lossless(tmp_path_factory):
    """Write 12 frames of random colours, 32 × 24, without loss."""
    frames = np.random.default_rng(1).integers(0, 256, (12, 24, 32, 3), np.uint8)
    return write_video(tmp_path_factory.mktemp("videos") / "random.mkv", frames), frames


@pytest.fixture(scope="module")
def kth(tmp_path_factory):
    """Write videos of five persons and two actions."""
    return write_kth(tmp_path_factory.mktemp("kth"), [11, 18, 1, 22, 2], actions=("walking", "boxing"))


def write(files, out, config=SMALL, **options):
    return write_videos(files, out, config, made_with={}, **options)


def read_ends(path):
    with Store(path) as store:
        array = store.open_path("meta/episode_ends")
        return array.read(0, array.shape[0]).tolist()


@pytest.mark.parametrize("suffix", CODECS)
def test_every_format_gives_its_frames(tmp_path, suffix):
    path = write_scene(tmp_path / f"scene{suffix}", 3)
    (frames,) = read_video(path, FrameConfig(size=32))
    expected = resize_frames(np.stack([draw_scene(3, k) for k in range(10)]), 32)
    assert frames.shape == (10, 32, 32, 3)
    assert np.abs(frames.astype(int) - expected).mean() < (24 if suffix == ".gif" else 6)  # 256 colours
    bright = frames[:, 16].sum(-1) > 250
    centres = (bright * np.arange(32)).sum(1) / bright.sum(1)
    assert (np.diff(centres) > 0).all()  # the square moves to the right
    assert read_rate(path) == 25


def test_frames_are_squeezed_cropped_strided_and_divided(lossless):
    path, frames = lossless
    (squeezed,) = read_video(path, SMALL)
    assert np.abs(squeezed.astype(int) - resize_frames(frames, 24)).mean() < 1
    square = frames[:, :, 4:28]
    (cropped,) = read_video(path, FrameConfig(size=24, crop=True))
    assert np.array_equal(cropped, square)
    parts = read_video(path, FrameConfig(size=24, crop=True, stride=2), [(0, 5), (3, 99), (4, 8)])
    for part, expected in zip(parts, (square[0:5:2], square[3::2], square[4:8:2]), strict=True):
        assert np.array_equal(part, expected)
    with pytest.raises(DemoError, match=r"1 frames of its frames 12 to 20, expected at least 2"):
        read_video(path, SMALL, [(0, 5), (11, 20)])


def test_turned_videos_are_read_upright(tmp_path):
    path = write_scene(tmp_path / "scene.mp4", 0)
    upright = read_video(path, SMALL)[0]
    matrix = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    turned = struct.pack(">9i", 0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x40000000)  # a quarter to the right
    content, track = path.read_bytes(), path.read_bytes().index(b"tkhd")
    path.write_bytes(content[:track] + content[track:].replace(matrix, turned, 1))
    frames = read_video(path, SMALL)[0]
    assert np.abs(frames.astype(int) - np.rot90(upright, -1, axes=(1, 2))).mean() < 2


def test_uneven_frames_are_refused(tmp_path):
    frames = [np.full((24, 24, 3), 20 * k, np.uint8) for k in range(6)]
    path = write_video(tmp_path / "uneven.mkv", frames, times=[0, 1, 2, 6, 7, 8])
    with pytest.raises(DemoError, match=r"variable frame rate: .* 0\.04 to 0\.16 s apart; convert it"):
        read_video(path, SMALL)


@pytest.mark.parametrize("suffix", [".avi", ".mp4", ".webm", ".mkv"])
def test_truncated_and_damaged_files_are_refused(tmp_path, suffix):
    options = {"movflags": "faststart"} if suffix == ".mp4" else {}
    frames = [draw_scene(3, k, 64, 48) for k in range(40)]
    path = write_video(tmp_path / f"scene{suffix}", frames, options=options)
    assert len(read_video(path, SMALL)[0]) == 40
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 5])
    with pytest.raises(DemoError, match=r"is truncated: it ends after \d+|damaged"):
        read_video(path, SMALL)
    middle = len(content) * 4 // 5
    noise = np.random.default_rng(0).integers(0, 256, 200, np.uint8).tobytes()
    path.write_bytes(content[:middle] + noise + content[middle + 200 :])
    with pytest.raises(DemoError, match=r"damaged|truncated"):
        read_video(path, SMALL)


def make_gif(side, frames=2):
    """Make a GIF of a few bytes whose frames are as large as it says."""
    frame = (
        b"\x21\xf9\x04\0\x04\0\0\0" + b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0"
    )
    head = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return head + frames * frame + b";"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"this is not a video" * 50, "damaged or not a video"),
        (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n", "damaged or not a video"),
        (make_gif(8, frames=1), "too short: 1 frames, expected at least 2"),
        (make_gif(16_000), "16000 × 16000 pixels, expected 1 to 16777216"),
        (make_gif(65_535), "damaged"),
    ],
    ids=["empty", "text", "playlist", "one frame", "large", "huge"],
)
def test_what_is_no_usable_video_is_refused(tmp_path, content, message):
    path = tmp_path / "file.gif"
    path.write_bytes(content)
    with pytest.raises(DemoError, match=message):
        read_video(path, SMALL)


def test_the_number_of_frames_is_bounded(tmp_path, monkeypatch):
    path = write_scene(tmp_path / "scene.avi", 0, 12)
    monkeypatch.setenv(MAX_UNPACKED_VARIABLE, str(10 * 24 * 24 * 3))
    with pytest.raises(DemoError, match=r"more than 10 frames, the limit; .*--stride"):
        read_video(path, SMALL)
    assert len(read_video(path, FrameConfig(size=24, stride=2))[0]) == 6


def test_the_split_of_kth_is_by_person(kth, tmp_path):
    assert sorted(sum(KTH_PERSONS.values(), ())) == [*range(1, 26)]
    names = {split: [path.name[:8] for path in find_videos(kth, kth=split)] for split in KTH_PERSONS}
    assert names == {
        "train": ["person11", "person18"] * 2,
        "validation": ["person01"] * 2,
        "test": ["person02", "person22"] * 2,
    }
    out = tmp_path / "kth.zarr"
    assert write(find_videos(kth, kth="validation"), out) == (2, 20, 25, 2)
    for k, action in enumerate(["boxing", "walking"]):
        (frames,) = read_video(kth / action / f"person01_{action}_d1_uncomp.avi", SMALL)
        assert np.array_equal(open_images(out)[10 * k : 10 * k + 10], frames)
    assert check_store(out) == []
    assert len(find_videos(write_kth(tmp_path, [11], flat=True), kth="train")) == 1


def test_sequences_of_kth_become_videos_and_writing_continues(tmp_path):
    write_kth(tmp_path, [11, 12])
    (tmp_path / "00sequences.txt").write_text(
        "Training:   person11, 12\n\nperson11_walking_d1\t\tframes\t1-4, 5-10, 3-99\n"
        "person13_handclapping_d3 *missing*\n"
    )
    files, out = find_videos(tmp_path, kth="train"), tmp_path / "kth.zarr"
    (whole,) = read_video(tmp_path / "walking/person11_walking_d1_uncomp.avi", SMALL)
    expected = np.concatenate([whole[:4], whole[4:], whole[2:]])

    def stop_after_one(paths):
        yield paths[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(files, out, progress=stop_after_one)
    assert read_ends(out) == [4, 10, 18]
    assert write(files, out).added == 1
    assert write(files, out).added == 0
    assert read_ends(out) == [4, 10, 18, 28]
    assert np.array_equal(open_images(out)[:18], expected)
    with pytest.raises(DemoError, match="made with size 24, not 32"):
        write(files, out, FrameConfig(size=32))
    (tmp_path / "00sequences.txt").write_text("person11_walking_d1 frames 1-4")
    with pytest.raises(DemoError, match="made with files"):
        write(find_videos(tmp_path, kth="train"), out)
    (tmp_path / "00sequences.txt").write_bytes(b"x")
    with pytest.raises(DemoError, match="no lines like"):
        find_videos(tmp_path, kth="train")


def test_a_folder_is_searched_for_videos_of_any_format(tmp_path):
    for k, name in enumerate(["b.avi", "a/x.mp4", "a/y.webm", ".hidden/z.avi", "a/._x.mp4"]):
        write_scene(tmp_path / name, k)
    (tmp_path / "a/x.mp4").rename(tmp_path / "a/x.MP4")
    (tmp_path / "notes.txt").write_text("no video")
    assert [path.name for path in find_videos(tmp_path)] == ["x.MP4", "y.webm", "b.avi"]
    assert [*find_videos(tmp_path / "b.avi")] == [tmp_path / "b.avi"]
    write_scene(tmp_path / "c.avi", 1, 10, rate=10)
    with pytest.raises(DemoError, match=r"c\.avi has 10 frames per second, the first video has 25; convert"):
        write(find_videos(tmp_path), tmp_path / "x.zarr")


def test_missing_videos_are_named(tmp_path):
    write_kth(tmp_path / "kth", [11])
    (tmp_path / "empty").mkdir()
    for folder, part, message in [
        ("kth", "test", r"holds no videos; expected person01.* of the test persons 2, 3"),
        ("nowhere", None, "does not exist"),
        ("empty", None, "holds no videos; expected files that end with"),
    ]:
        with pytest.raises(DemoError, match=message):
            find_videos(tmp_path / folder, kth=part)


def test_commands_print_what_the_store_holds(kth, tmp_path, capsys):
    out = str(tmp_path / "k.zarr")
    command = ["video", "data", str(kth), "--kth", "validation", "--size", "16", "--out", out]
    assert main(command) == 0
    assert f"OK: {out} holds 2 videos (2 new), 20 frames of 16 × 16, 25 Hz" in capsys.readouterr().out
    assert main(["data", "info", out]) == 0
    text = capsys.readouterr().out
    assert "for `nsde-policy video train`: img" in text
    assert "--obs-keys" not in text
    assert "--images" not in text
    assert main(["data", "check", out]) == 0
    assert main([*command, "--size", "100000"]) == 2
    assert capsys.readouterr().err.endswith("need size <= 4096, got 100000\n")
