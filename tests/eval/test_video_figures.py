"""Tests of the pictures of predicted videos."""

import io

import numpy as np
import pytest
from PIL import Image

from nsde_policy.eval.video.figures import draw_film_strip, write_animation
from nsde_policy.video.collisions import CollisionsConfig, make_collisions
from nsde_policy.video.pixels import to_unit


@pytest.fixture(scope="module")
def videos():
    return make_collisions(3, CollisionsConfig(frames=7, size=32), seed=1)


def test_a_film_strip_shows_context_and_titles(tmp_path, videos):
    future = to_unit(videos.frames[0, 4:])
    files = draw_film_strip(videos.frames[0, :4], {"truth": future, "my method": future}, tmp_path, columns=2)
    assert [file.name for file in files] == ["film_strip.png", "film_strip.svg"]
    text = files[1].read_text()
    assert all(f">{title}<" in text for title in ("truth", "my method", "−3, given", "+1", "+3"))
    assert ">+2<" not in text


def test_an_animation_shows_the_context_and_then_the_videos(tmp_path, videos):
    future = to_unit(videos.frames[0, 4:])
    still = future[:1].expand_as(future)
    write_animation(videos.frames[0, :4], {"truth": future, "still": still}, tmp_path / "a.gif")
    gif = Image.open(io.BytesIO((tmp_path / "a.gif").read_bytes()))
    assert gif.n_frames == 4 + 3
    frames = []
    for k in range(gif.n_frames):
        gif.seek(k)
        frames.append(np.asarray(gif.convert("RGB"), dtype=float))
    changes = np.abs(frames[4] - frames[6])[len(frames[0]) // 4 : -len(frames[0]) // 6]  # without writing
    truth, other = np.array_split(changes, 2, axis=1)
    assert truth.max() > 60
    assert other.max() == 0
