"""Tests of video files as stores: decoding, damage, folders, and `video data`."""

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
from nsde_video.__main__ import NSDE_VIDEO
from nsde_video.video_stores import FrameConfig, find_videos, read_rate, read_video, write_videos
from tests.helpers.video_files import CODECS, draw_scene, write_scene, write_video

SMALL = FrameConfig(size=24)


def read_ends(path):
    with Store(path) as store:
        array = store.open_path("meta/episode_ends")
        return array.read(0, array.shape[0]).tolist()


@pytest.mark.parametrize("suffix", CODECS)
def test_every_format_gives_its_frames(tmp_path, suffix):
    path = write_scene(tmp_path / f"scene{suffix}", 3)
    frames = read_video(path, FrameConfig(size=32))
    expected = resize_frames(np.stack([draw_scene(3, k) for k in range(10)]), 32)
    assert frames.shape == (10, 32, 32, 3)
    assert np.abs(frames.astype(int) - expected).mean() < (24 if suffix == ".gif" else 6)  # 256 colours
    bright = frames[:, 16].sum(-1) > 250
    centres = (bright * np.arange(32)).sum(1) / bright.sum(1)
    assert (np.diff(centres) > 0).all()  # the square moves to the right
    assert read_rate(path) == 25


def test_every_nth_frame_is_resized(tmp_path):
    frames = np.random.default_rng(1).integers(0, 256, (12, 24, 32, 3), np.uint8)
    path = write_video(tmp_path / "random.mkv", frames)
    resized = read_video(path, FrameConfig(size=24, stride=5))
    assert np.abs(resized.astype(int) - resize_frames(frames[::5], 24)).mean() < 1


def test_turned_videos_are_read_upright(tmp_path):
    path = write_scene(tmp_path / "scene.mp4", 0)
    upright = read_video(path, SMALL)
    matrix = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    turned = struct.pack(">9i", 0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x40000000)  # a quarter to the right
    content, track = path.read_bytes(), path.read_bytes().index(b"tkhd")
    path.write_bytes(content[:track] + content[track:].replace(matrix, turned, 1))
    frames = read_video(path, SMALL)
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
    assert len(read_video(path, SMALL)) == 40
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
    assert len(read_video(path, FrameConfig(size=24, stride=2))) == 6


def test_an_interrupted_conversion_continues(tmp_path):
    for number, length in enumerate((4, 6, 10)):
        write_scene(tmp_path / f"videos/{number}.avi", number, length)
    files, out = find_videos(tmp_path / "videos"), tmp_path / "videos.zarr"

    def stop_after_one(paths):
        yield paths[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_videos(files, out, SMALL, progress=stop_after_one)
    assert read_ends(out) == [4]
    assert write_videos(files, out, SMALL) == (3, 20, 25, 2)
    assert write_videos(files, out, SMALL).added == 0
    assert read_ends(out) == [4, 10, 20]
    assert np.array_equal(open_images(out)[4:10], read_video(files[1], SMALL))
    assert check_store(out) == []
    with pytest.raises(DemoError, match="made with size 24, not 32"):
        write_videos(files, out, FrameConfig(size=32))
    with pytest.raises(DemoError, match="made with files"):
        write_videos(files[:2], out, SMALL)


def test_a_folder_is_searched_for_videos_of_any_format(tmp_path):
    for k, name in enumerate(["b.avi", "a/x.mp4", "a/y.webm", ".hidden/z.avi", "a/._x.mp4"]):
        write_scene(tmp_path / name, k)
    (tmp_path / "a/x.mp4").rename(tmp_path / "a/x.MP4")
    (tmp_path / "notes.txt").write_text("no video")
    assert [path.name for path in find_videos(tmp_path)] == ["x.MP4", "y.webm", "b.avi"]
    assert [*find_videos(tmp_path / "b.avi")] == [tmp_path / "b.avi"]
    write_scene(tmp_path / "c.avi", 1, 10, rate=10)
    with pytest.raises(DemoError, match=r"c\.avi has 10 frames per second, the first video has 25; convert"):
        write_videos(find_videos(tmp_path), tmp_path / "x.zarr", SMALL)


def test_missing_videos_are_named(tmp_path):
    with pytest.raises(DemoError, match="does not exist"):
        find_videos(tmp_path / "nowhere")
    with pytest.raises(DemoError, match="holds no videos; expected files that end with"):
        find_videos(tmp_path)


def test_the_command_prints_what_the_store_holds(tmp_path, capsys):
    for number in range(2):
        write_scene(tmp_path / f"videos/{number}.mp4", number)
    out = str(tmp_path / "k.zarr")
    command = ["data", str(tmp_path / "videos"), "--size", "16", "--out", out]
    assert NSDE_VIDEO.run(command) == 0
    assert f"OK: {out} holds 2 videos (2 new), 20 frames of 16 × 16, 25 Hz" in capsys.readouterr().out
    assert main(["data", "info", out]) == 0
    text = capsys.readouterr().out
    assert "--images" not in text
    assert NSDE_VIDEO.run([*command, "--size", "100000"]) == 2
    assert capsys.readouterr().err.endswith("need size <= 4096, got 100000\n")
