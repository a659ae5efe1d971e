"""Tests of stores of collision videos."""

import json

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import open_images
from nsde_policy.data.zarr_store.check import check_store
from nsde_policy.errors import ConfigError, EpisodeError
from nsde_policy.video import collision_store
from nsde_policy.video.collision_store import write_collisions
from nsde_policy.video.collisions import TABLE, CollisionsConfig
from nsde_policy.video.windows import open_videos

CONFIG = CollisionsConfig(size=16, frames=3, substeps=2)


def read_state(path):
    from nsde_policy.data.zarr_store.store import Store, read_columns

    with Store(path) as store:
        ends, (array,) = store.open_episodes(["data/state"])
        return read_columns(array, ends).reshape(-1, 5, 5)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(collision_store, "COLLISION_BATCH", 4)


def test_a_store_holds_frames_and_true_states(tmp_path):
    out = tmp_path / "c.zarr"
    report = write_collisions(out, 6, CONFIG, seed=0)
    assert (report.videos, report.frames, report.rate_hz) == (6, 36, 20)
    assert check_store(out) == []
    state, images = read_state(out), open_images(out)[:]
    radius = state[..., 4]
    assert {*(radius > 0).sum(1).tolist()} <= {3, 4, 5}
    assert (state[radius == 0] == 0).all()
    moved = np.diff(state[:6, :, :2], axis=0)  # two stored frames per frame, and no wall or other object near
    assert np.median(np.abs(moved - state[:5, :, 2:4] / 2)[radius[:5] > 0]) < 1e-4
    for row in range(0, 36, 6):
        for x, y, *_ in state[row, radius[row] > 0]:
            assert images[row, int(y / 4), int(x / 4)].astype(int).sum() > sum(TABLE) + 30
    assert len(open_videos(out, size=16, stride=2)) == 6


def test_more_videos_continue_a_store_and_do_not_depend_on_their_number(tmp_path):
    write_collisions(tmp_path / "a.zarr", 3, CONFIG, seed=1)
    assert write_collisions(tmp_path / "a.zarr", 6, CONFIG, seed=1).added == 3
    write_collisions(tmp_path / "b.zarr", 6, CONFIG, seed=1)
    write_collisions(tmp_path / "c.zarr", 6, CONFIG, seed=2)
    a, b, c = (open_images(tmp_path / f"{name}.zarr")[:] for name in "abc")
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert not np.array_equal(a[:18], a[18:])
    with pytest.raises(EpisodeError, match="made with seed 1, not 2"):
        write_collisions(tmp_path / "a.zarr", 6, CONFIG, seed=2)
    with pytest.raises(ConfigError, match="--videos >= 1 and --seed >= 0, got 0 and -1"):
        write_collisions(tmp_path / "d.zarr", 0, CONFIG, seed=-1)


def test_the_command_writes_a_store(tmp_path, capsys):
    out = str(tmp_path / "c.zarr")
    command = ["video", "data", "collisions", "--videos", "2", "--frames", "2", "--size", "16", "--out", out]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 4
    assert main([*command, "--substeps", "3"]) == 2
    assert "substeps must divide 20" in capsys.readouterr().err
