"""Tests for envs/pusht/drawing.py."""

import numpy as np
import pytest

from nsde_policy.envs.pusht import drawing, geometry


def is_colour(picture, point, colour):
    """Whether a flat place of the picture has the colour, to the rounding of the scaling."""
    x, y = point
    return np.abs(picture[round(y), round(x)].astype(int) - colour).max() <= 4


@pytest.mark.slow
def test_benchmark_frame_matches_recorded_frames_to_35_db(human_demos):
    import zarr

    data = zarr.open_group(str(human_demos), mode="r")["data"]
    chunk = data["img"].chunks[0]
    starts = np.linspace(0, data["img"].shape[0] - chunk, 10).astype(int) // chunk * chunk
    scores, same = [], []
    for start in starts:  # whole chunks, since one chunk is what a read costs
        frames, states = data["img"][start : start + chunk], data["state"][start : start + chunk]
        for i in range(0, chunk, 3)[:50]:
            drawn = drawing.benchmark_frame(states[i, :2].tolist(), states[i, 2:].tolist())
            error = max(np.mean((drawn.astype(float) - frames[i]) ** 2), 1e-9)
            scores.append(10 * np.log10(255**2 / error))
            same.append((drawn == frames[i]).all(-1).mean())
    assert len(scores) == 500
    assert np.mean(scores) > 40
    assert np.min(scores) > 35
    assert np.mean(same) > 0.99


def test_frame_shows_all_requested_shapes():
    agent, block = (100.0, 100.0), (300.0, 300.0, 1.0)
    palette = drawing.Palette()
    path = np.array([[100.0, 100.0], [200.0, 100.0], [300.0, 120.0]])[:, None].repeat(3, axis=1)
    picture = drawing.frame(agent, block, target=(60.0, 60.0), futures=path)
    assert (picture.shape, picture.dtype) == ((512, 512, 3), np.uint8)
    (stem_tip,) = geometry.to_world([(0.0, 110.0)], block)
    (goal_tip,) = geometry.to_world([(0.0, 110.0)], geometry.GOAL_POSE)

    assert is_colour(picture, agent, palette.agent)
    assert is_colour(picture, stem_tip, palette.block)
    assert is_colour(picture, goal_tip, palette.goal)
    assert is_colour(picture, (60, 60), palette.target)
    assert is_colour(picture, (480, 480), palette.table)
    assert not is_colour(picture, (150, 100), palette.table)  # the path
    assert is_colour(drawing.frame(agent, block), (150, 100), palette.table)
