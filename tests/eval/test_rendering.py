"""Tests for eval/render: video.py, frames.py and forecast.py."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.envs.pusht import drawing
from nsde_policy.errors import CheckpointError, NsdePolicyError
from nsde_policy.eval.render import video as rendering
from nsde_policy.eval.render.pictures import caption_height
from nsde_policy.eval.render.video import FORECAST_SAMPLES, FORECAST_STEPS, RenderedEpisode
from nsde_policy.eval.rollouts.episode import EpisodeResult
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import EnvRunner, RolloutConfig

STEPS = 12
SEEDS = (100_000, 100_001)
CONFIG = RolloutConfig(episodes=2)


@pytest.fixture(scope="module")
def player():
    return EnvRunner(None, RolloutConfig(env_kwargs={"max_episode_steps": STEPS}))


@pytest.fixture(scope="module")
def film(player):
    return RenderedEpisode.run(player, SEEDS[0])


def untimed(result: EpisodeResult) -> EpisodeResult:
    return dataclasses.replace(result, planning_s=0.0)


def episode(seed, success):
    costs = {"steps": 9, "plans": 2, "planned": 16, "network_calls": 16, "planning_s": 1.0}
    return EpisodeResult(seed, success, 1.0, {}, **costs)


def test_rendered_episode_equals_the_evaluated_one():
    player = EnvRunner(None, RolloutConfig(env_kwargs={"max_episode_steps": 40}))
    (evaluated,) = RolloutPool(None, player.config).run(SEEDS[:1])
    film = RenderedEpisode.run(player, SEEDS[0])
    assert untimed(film.result) == untimed(evaluated)
    assert evaluated.plans == 5, "noise used up by a forecast would show in later plans"
    assert len(film) == len(film.forecasts) + 1 == evaluated.steps + 1
    assert film.result.trace.progress[-1] == evaluated.metrics["final_coverage"]


def test_forecasts_start_where_the_policy_planned(film):
    for start, _ in film.result.trace.histories:
        ahead = film.forecasts[start]
        assert ahead.obs.shape == (FORECAST_STEPS + 1, FORECAST_SAMPLES, 5)
        here = np.broadcast_to(film.result.trace.obs[start][:2], (FORECAST_SAMPLES, 2))
        np.testing.assert_allclose(ahead.obs[0, :, :2], here, atol=1e-3)
    assert [len(ahead.obs) for ahead in film.forecasts[:3]] == [
        FORECAST_STEPS + 1,
        FORECAST_STEPS,
        FORECAST_STEPS - 1,
    ]


def test_frame_shows_the_forecast_and_a_caption(film):
    plain = drawing.frame(film.result.trace.obs[0][:2], film.result.trace.obs[0][2:])
    frame = film.frame(0, 512)
    assert frame.shape == (512 + caption_height(512), 512, 3)
    assert (frame[:512] != plain).any(axis=-1).sum() > 1000
    ended = film.frame(len(film) - 1, 512)
    agent, block = film.result.trace.obs[-1][:2], film.result.trace.obs[-1][2:]
    np.testing.assert_array_equal(ended[:512], drawing.frame(agent, block))  # the last frame has no forecast


def test_files_are_named_by_outcome_and_show_the_first_of_each():
    assert rendering.format_outcome(episode(100_003, True)) == "seed-100003-success"
    assert rendering.format_outcome(episode(7, False)) == "seed-7-failure"
    outcomes = [(seed, seed % 2 == 0) for seed in range(8)]
    assert rendering.choose_video_seeds(outcomes, 2) == [0, 2, 1, 3]
    assert rendering.choose_video_seeds(outcomes, 0) == []


@pytest.mark.slow
def test_videos_are_written(player, tmp_path):
    found = [player.run_one(seed) for seed in SEEDS]
    import imageio.v2 as imageio

    out = tmp_path / "eval"
    out.mkdir()
    (out / f"seed-{SEEDS[0]}-success.mp4").touch()  # of an earlier evaluation
    files = rendering.Renderer(None, player.config, out, videos=1).write(found)
    name = f"{rendering.format_outcome(found[0])}.mp4"  # all failed, so early
    assert [path.name for path in out.iterdir()] == [name]
    assert {*files} == {*out.iterdir()}

    with imageio.get_reader(out / name) as video:
        told = video.get_meta_data()
        frames = list(iter(video))  # its metadata give an infinite length
    assert (told["codec"], told["pix_fmt"].split("(")[0], told["fps"]) == ("h264", "yuv420p", 30)
    assert len(frames) == 3 * (STEPS + 1 + 10 * rendering.HOLD_S)
    assert frames[0].shape == (
        rendering.FRAME_SIDE + caption_height(rendering.FRAME_SIDE),
        rendering.FRAME_SIDE,
        3,
    )


def test_what_cannot_be_written_fails_before_playing(monkeypatch, tmp_path, capsys):
    with pytest.raises(NsdePolicyError, match="cannot be written"):
        rendering.Renderer(None, CONFIG, Path("/dev/null/eval"))
    with pytest.raises(CheckpointError):
        rendering.Renderer(tmp_path / "typo", CONFIG)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["eval", "--render", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "pip install 'av>=15.0' 'imageio>=2.34' 'imageio-ffmpeg>=0.5'" in said.err
    assert not list(tmp_path.iterdir()), "no folder is made"
