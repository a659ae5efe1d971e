"""Tests for eval/render: video.py, frames.py and forecast.py."""

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pygame
import pytest

from nsde_policy.cli.main import main
from nsde_policy.envs.pusht import drawing
from nsde_policy.errors import CheckpointError, ConfigError, MissingDependencyError, NsdePolicyError
from nsde_policy.eval.evaluate import Evaluation
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.render import video as rendering
from nsde_policy.eval.render.forecast import FORECAST_SAMPLES, FORECAST_STEPS
from nsde_policy.eval.render.frames import RenderedEpisode, draw_summary
from nsde_policy.eval.render.pictures import caption_height
from nsde_policy.eval.rollout import EpisodeResult, Player, RolloutConfig
from nsde_policy.eval.scores import score_episodes

STEPS = 12
SEEDS = (100_000, 100_001, 100_002)


@pytest.fixture(scope="module")
def player():
    return Player(None, RolloutConfig(env_kwargs={"max_episode_steps": STEPS}))


@pytest.fixture(scope="module")
def film(player):
    return RenderedEpisode.play(player, SEEDS[0])


@pytest.fixture
def found(player):
    return Evaluation(score_episodes([player.play(seed) for seed in SEEDS], player.task), player.config, {})


@pytest.fixture
def no_display(monkeypatch):
    monkeypatch.setattr(rendering, "has_display", lambda: False)


def untimed(result: EpisodeResult) -> EpisodeResult:
    return dataclasses.replace(result, planning_s=0.0)


def episode(seed, success, max_progress=1.0):
    costs = {"steps": 9, "plans": 2, "planned": 16, "network_calls": 16, "planning_s": 1.0}
    return EpisodeResult(seed, success, 1.0, {}, max_progress, **costs)


def test_rendered_episode_equals_the_evaluated_one():
    player = Player(None, RolloutConfig())  # to its end: noise used up by a forecast would show by then
    (evaluated,) = RolloutPool(None, player.config).evaluate(SEEDS[1:2])
    film = RenderedEpisode.play(player, SEEDS[1])
    assert untimed(film.result) == untimed(evaluated)
    assert evaluated.success
    assert len(film) == len(film.forecasts) + 1 == evaluated.steps + 1
    assert film.result.trace.progress[-1] == evaluated.metrics["final_coverage"]


def test_summary_counts_steps_to_the_first_success(player):
    result = dataclasses.replace(player.play(SEEDS[0]), success=True, success_step=7)
    assert draw_summary(player.task, result, 96).caption == f"{SEEDS[0]}: success after 7 steps"


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


def test_region_is_two_standard_deviations_wide(film):
    agent = film.forecasts[0].obs[1:, :, :2]
    end = agent[-1]
    corners = drawing.spread_regions(agent)[-1] - end.mean(axis=0)
    inverse = np.linalg.inv(np.cov(end.T))
    np.testing.assert_allclose(np.einsum("pi,ij,pj->p", corners, inverse, corners), 4.0, rtol=1e-6)


def test_frame_shows_the_forecast_and_a_caption(film):
    plain = drawing.frame(film.result.trace.obs[0][:2], film.result.trace.obs[0][2:])
    frame = film.frame(0, 512)
    assert frame.shape == (512 + caption_height(512), 512, 3)
    assert (frame[:512] != plain).any(axis=-1).sum() > 1000
    ended = film.frame(len(film) - 1, 512)
    agent, block = film.result.trace.obs[-1][:2], film.result.trace.obs[-1][2:]
    np.testing.assert_array_equal(ended[:512], drawing.frame(agent, block))  # the last frame has no forecast


def test_files_are_named_by_outcome():
    assert rendering.format_outcome(episode(100_003, True)) == "seed-100003-success"
    assert rendering.format_outcome(episode(100_007, False, 0.9119)) == "seed-100007-failure-0.91"
    assert rendering.format_outcome(episode(7, False, 0.9499)) == "seed-7-failure-0.94"


def test_videos_show_the_first_failures_and_successes():
    outcomes = [(seed, seed % 2 == 0) for seed in range(8)]
    assert rendering.choose_video_seeds(outcomes, 2) == [0, 2, 1, 3]
    assert rendering.choose_video_seeds(outcomes, 0) == []


@pytest.mark.slow
def test_videos_and_contact_sheet_are_written_without_a_display(found, no_display, tmp_path):
    import imageio.v2 as imageio

    out = tmp_path / "eval"
    out.mkdir()
    (out / f"seed-{SEEDS[0]}-success.mp4").touch()  # of an earlier evaluation
    files = rendering.Renderer(None, out, videos=3).show(found)
    names = {f"{rendering.format_outcome(episode)}.mp4" for episode in found.scores.episodes}
    assert {path.name for path in out.iterdir()} == {rendering.SHEET, *names}  # all failed, so early
    assert {*files} == {*out.iterdir()}

    with imageio.get_reader(out / min(names)) as video:
        told = video.get_meta_data()
        frames = list(iter(video))  # its metadata give an infinite length
    assert (told["codec"], told["pix_fmt"].split("(")[0], told["fps"]) == ("h264", "yuv420p", 30)
    assert len(frames) == 3 * (STEPS + 1 + 10 * rendering.HOLD_S)
    assert frames[0].shape == (
        rendering.FRAME_SIDE + caption_height(rendering.FRAME_SIDE),
        rendering.FRAME_SIDE,
        3,
    )


def test_contact_sheet_has_a_tile_per_episode(found, no_display, tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "choose_video_seeds", lambda *_: [])
    rendering.Renderer(None, tmp_path).show(found)
    sheet = pygame.surfarray.array3d(pygame.image.load(str(tmp_path / rendering.SHEET))).swapaxes(0, 1)
    agent = np.abs(sheet.astype(int) - drawing.Palette().agent).max(axis=-1) < 5
    columns = rendering.count_columns(len(SEEDS))
    assert columns == 3
    found_in = [int(part.sum()) for part in np.array_split(agent, columns, axis=1)]
    assert len(found_in) == len(SEEDS)
    assert min(found_in) > 50


def test_missing_extra_fails_before_playing(monkeypatch, tmp_path, no_display, capsys):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingDependencyError, match=r"nsde-policy\[video\]"):
        rendering.Renderer(None, tmp_path)
    assert main(["eval", "--render", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1


def test_unwritable_output_fails_before_playing(no_display):
    with pytest.raises(NsdePolicyError, match="cannot be written"):
        rendering.Renderer(None, Path("/dev/null/eval"))
    with pytest.raises(ConfigError, match="videos must be at least 0"):
        rendering.Renderer(None, videos=-1)


def test_no_folder_is_made_outside_run_directories(no_display, tmp_path):
    with pytest.raises(CheckpointError):
        rendering.Renderer(tmp_path / "typo")
    assert not list(tmp_path.iterdir())


def test_interrupted_video_leaves_no_file(film, tmp_path, monkeypatch):
    def interrupted(*_):
        yield film.frame(0, 64)
        raise KeyboardInterrupt

    monkeypatch.setattr(RenderedEpisode, "frames", interrupted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        rendering.encode_video(film)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_window_plays_until_it_is_closed_or_interrupted():
    code = """
import pygame
from nsde_policy.envs.window import Window
from nsde_policy.eval.render.video import has_display, play_in_window
from nsde_policy.eval.rollout import Player, RolloutConfig
assert has_display()
def interrupt():
    raise KeyboardInterrupt
def close():
    pygame.event.post(pygame.event.Event(pygame.QUIT))
player, show = Player(None, RolloutConfig(env_kwargs={"max_episode_steps": 12})), Window.show
for end in (close, interrupt):
    shown = []
    def counting(self, picture):
        show(self, picture)
        shown.append(picture.shape)
        if len(shown) == 3:
            end()
    Window.show = counting
    play_in_window(player, [100_000, 100_001])
    assert 3 <= len(shown) <= 4, shown
    assert not pygame.display.get_init()
"""
    env = {"SDL_VIDEODRIVER": "dummy", "DISPLAY": ":0", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=Path(__file__).parents[2], check=True)


@pytest.mark.parametrize("display", [None, ":77"])
def test_no_window_without_a_reachable_display(display, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    if display:
        monkeypatch.setenv("DISPLAY", display)
    with monkeypatch.context() as offscreen:  # as environments do that draw with pygame
        offscreen.setenv("SDL_VIDEODRIVER", "dummy")
        pygame.display.init()
    assert not rendering.has_display()
