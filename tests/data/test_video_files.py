"""Tests of decoding video files: frames, spacing, damage, and files that are made to harm."""

import struct

import numpy as np
import pytest

from nsde_policy.data.frames import resize_frames
from nsde_policy.data.video_files import FrameConfig, read_rate, read_video
from nsde_policy.errors import DemoError
from nsde_policy.files import MAX_UNPACKED_VARIABLE
from tests.helpers.video_files import CODECS, draw_scene, write_scene, write_video

SMALL = FrameConfig(size=24)


@pytest.fixture(scope="module")
def lossless(tmp_path_factory):
    """Write 12 frames of random colours, 32 × 24, without loss."""
    frames = np.random.default_rng(1).integers(0, 256, (12, 24, 32, 3), np.uint8)
    return write_video(tmp_path_factory.mktemp("videos") / "random.mkv", frames), frames


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


def test_frames_are_squeezed_or_cropped(lossless):
    path, frames = lossless
    (squeezed,) = read_video(path, SMALL)
    assert np.abs(squeezed.astype(int) - resize_frames(frames, 24)).mean() < 1
    (cropped,) = read_video(path, FrameConfig(size=24, crop=True))
    assert np.array_equal(cropped, frames[:, :, 4:28])


def test_stride_and_parts_select_frames(lossless):
    path, frames = lossless
    frames = frames[:, :, 4:28]
    (strided,) = read_video(path, FrameConfig(size=24, crop=True, stride=5))
    assert np.array_equal(strided, frames[::5])
    parts = read_video(path, FrameConfig(size=24, crop=True, stride=2), [(0, 5), (3, 99), (4, 8)])
    for part, expected in zip(parts, (frames[0:5:2], frames[3::2], frames[4:8:2]), strict=True):
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
    found = read_video(path, SMALL)[0]
    assert np.abs(found.astype(int) - np.rot90(upright, -1, axes=(1, 2))).mean() < 2


def test_uneven_frames_are_refused(tmp_path):
    frames = [np.full((24, 24, 3), 20 * k, np.uint8) for k in range(6)]
    path = write_video(tmp_path / "uneven.mkv", frames, times=[0, 1, 2, 6, 7, 8])
    with pytest.raises(DemoError, match=r"variable frame rate: .* 0\.04 to 0\.16 s apart; convert it"):
        read_video(path, SMALL)


def cut(content, share):
    return content[: int(len(content) * share)]


def overwrite(content):
    """Replace 200 bytes behind the headers by noise."""
    middle = len(content) * 4 // 5 if content[:4] == b"RIFF" else len(content) // 3
    noise = np.random.default_rng(0).integers(0, 256, 200, np.uint8).tobytes()
    return content[:middle] + noise + content[middle + 200 :]


@pytest.mark.parametrize("suffix", [".avi", ".mp4", ".webm", ".mkv"])
@pytest.mark.parametrize("share", [0.01, 0.6])
def test_truncated_files_are_refused(tmp_path, suffix, share):
    options = {"movflags": "faststart"} if suffix == ".mp4" else {}
    path = write_scene(tmp_path / f"scene{suffix}", 3, 20, options=options)
    assert len(read_video(path, SMALL)[0]) == 20
    path.write_bytes(cut(path.read_bytes(), share))
    with pytest.raises(DemoError, match=r"is truncated: it ends after \d+|damaged|holds no video|too short"):
        read_video(path, SMALL)


@pytest.mark.parametrize("suffix", [".avi", ".mp4", ".webm", ".mkv"])
def test_damage_that_the_decoder_notices_is_refused(tmp_path, suffix):
    path = write_video(tmp_path / f"scene{suffix}", [draw_scene(3, k, 64, 48) for k in range(40)])
    path.write_bytes(overwrite(path.read_bytes()))
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
