"""Tests for eval/render/video.py, film.py and forecast.py: what is drawn is what was evaluated."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pygame
import pytest

from nsde_policy.cli.main import main
from nsde_policy.envs.pusht import drawing
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.errors import CheckpointError, ConfigError, MissingDependencyError, OutputError
from nsde_policy.eval.evaluate import Evaluation
from nsde_policy.eval.pool import evaluate
from nsde_policy.eval.render import video as rendering
from nsde_policy.eval.render.forecast import HORIZON, SAMPLES
from nsde_policy.eval.render.frames import Film
from nsde_policy.eval.render.pictures import caption_height
from nsde_policy.eval.rollout import EpisodeResult, Player, RolloutConfig
from nsde_policy.eval.scores import score

SHORT, STEPS = "nsde_policy/ShortPushT-v0", 12
SEEDS = (100_000, 100_001, 100_002)


@pytest.fixture(scope="module")
def player():
    gym.register(SHORT, PushTEnv, max_episode_steps=STEPS)
    yield Player(None, RolloutConfig(SHORT))
    del gym.registry[SHORT]


@pytest.fixture(scope="module")
def film(player):
    return Film.shoot(player, SEEDS[0])


@pytest.fixture
def found(player):
    return Evaluation(score([player.play(seed) for seed in SEEDS]), player.config, {})


@pytest.fixture
def no_display(monkeypatch):
    monkeypatch.setattr(rendering, "has_display", lambda: False)


def untimed(result: EpisodeResult) -> EpisodeResult:
    return dataclasses.replace(result, planning_s=0.0)


def episode(seed, success, max_reward=1.0):
    return EpisodeResult(
        seed, max_reward, success, 0.5, steps=9, plans=2, planned=16, network_calls=16, planning_s=1.0
    )


def test_a_rendered_episode_is_exactly_the_evaluated_one():
    player = Player(None, RolloutConfig())  # to its end: noise used up by a forecast would show by then
    (evaluated,) = evaluate(None, SEEDS[1:2], player.config)
    film = Film.shoot(player, SEEDS[1])
    assert untimed(film.result) == untimed(evaluated)
    assert evaluated.success
    assert len(film) == len(film.ahead) + 1 == evaluated.steps + 1
    assert film.trace.coverage[-1] == evaluated.final_coverage


def test_forecasts_start_where_the_policy_planned(film):
    for start, _ in film.trace.memories:
        ahead = film.ahead[start]
        assert ahead.agent.shape == (HORIZON + 1, SAMPLES, 2)
        here = np.broadcast_to(film.trace.obs[start][:2], (SAMPLES, 2))
        np.testing.assert_allclose(ahead.agent[0], here, atol=1e-3)
    assert [len(ahead.agent) for ahead in film.ahead[:3]] == [HORIZON + 1, HORIZON, HORIZON - 1]


def test_the_tube_holds_two_standard_deviations(film):
    ahead = film.ahead[0]
    end = ahead.agent[-1]
    corners = ahead.regions[-1] - end.mean(axis=0)
    inverse = np.linalg.inv(np.cov(end.T))
    np.testing.assert_allclose(np.einsum("pi,ij,pj->p", corners, inverse, corners), 4.0, rtol=1e-6)


def test_a_frame_shows_the_forecast_and_the_coverage(film):
    plain = drawing.frame(film.trace.obs[0][:2], film.trace.obs[0][2:])
    frame = film.frame(0, 512)
    assert frame.shape == (512 + caption_height(512), 512, 3)
    assert (frame[:512] != plain).any(axis=-1).sum() > 1000
    ended = film.frame(len(film) - 1, 512)
    agent, block = film.trace.obs[-1][:2], film.trace.obs[-1][2:]
    np.testing.assert_array_equal(ended[:512], drawing.frame(agent, block))  # nothing is ahead any more


def test_files_are_named_by_outcome():
    assert rendering.outcome_name(episode(100_003, True)) == "seed-100003-success"
    assert rendering.outcome_name(episode(100_007, False, 0.9599)) == "seed-100007-failure-0.91"
    assert rendering.outcome_name(episode(7, False, 0.9999)) == "seed-7-failure-0.94"


def test_the_first_failures_and_the_first_successes_are_filmed():
    episodes = [episode(seed, seed % 2 == 0) for seed in range(8)]
    assert rendering.seeds_to_film(episodes, 2) == {1, 3, 0, 2}
    assert rendering.seeds_to_film(episodes, 0) == set()


def test_without_a_display_videos_and_a_sheet_are_written(found, no_display, tmp_path, capsys):
    import imageio.v2 as imageio

    out = tmp_path / "eval"
    out.mkdir()
    (out / f"seed-{SEEDS[0]}-success.mp4").touch()  # of an earlier evaluation
    rendering.Renderer(None, out, videos=3).show(found)
    names = {f"{rendering.outcome_name(episode)}.mp4" for episode in found.scores.episodes}
    assert {path.name for path in out.iterdir()} == {rendering.SHEET, *names}  # all failed, so early
    assert f"wrote contact-sheet.png and 3 mp4 to {out}" in capsys.readouterr().err

    with imageio.get_reader(out / min(names)) as video:
        told = video.get_meta_data()
        frames = list(iter(video))  # its length is infinite, it says
    assert (told["codec"], told["pix_fmt"].split("(")[0], told["fps"]) == ("h264", "yuv420p", 30)
    assert len(frames) == rendering.REPEAT * (STEPS + 1 + rendering.HOLD)
    assert frames[0].shape == (rendering.SIZE + caption_height(rendering.SIZE), rendering.SIZE, 3)


def test_the_contact_sheet_has_a_tile_per_episode(found, no_display, tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "seeds_to_film", lambda *_: set())
    rendering.Renderer(None, tmp_path).show(found)
    sheet = pygame.surfarray.array3d(pygame.image.load(str(tmp_path / rendering.SHEET))).swapaxes(0, 1)
    agent = np.abs(sheet.astype(int) - drawing.Palette().agent).max(axis=-1) < 5
    columns = rendering.columns_for(len(SEEDS))
    assert columns == 3
    found_in = [int(part.sum()) for part in np.array_split(agent, columns, axis=1)]
    assert len(found_in) == len(SEEDS)
    assert min(found_in) > 50


def test_a_missing_extra_is_said_before_anything_is_played(monkeypatch, tmp_path, no_display, capsys):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingDependencyError, match=r"nsde-policy\[video\]"):
        rendering.Renderer(None, tmp_path)
    assert main(["eval", "--render", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1


def test_what_cannot_be_written_is_refused_before_anything_is_played(no_display):
    with pytest.raises(OutputError, match="cannot be written"):
        rendering.Renderer(None, Path("/dev/null/eval"))
    with pytest.raises(ConfigError, match="videos must be at least 0"):
        rendering.Renderer(None, videos=-1)


def test_no_folder_is_made_in_what_is_no_run(no_display, tmp_path):
    with pytest.raises(CheckpointError):
        rendering.Renderer(tmp_path / "typo")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_video_leaves_no_file(film, tmp_path, monkeypatch):
    def interrupted(*_):
        yield film.frame(0, 64)
        raise KeyboardInterrupt

    monkeypatch.setattr(Film, "frames", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rendering.write_video(film, tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "end", ["pygame.event.post(pygame.event.Event(pygame.QUIT))", "raise KeyboardInterrupt"]
)
def test_a_window_plays_until_it_is_closed(end):
    code = f"""
import pygame
from nsde_policy.envs.pusht.drawing import Window
from nsde_policy.eval.render.video import has_display, play_in_window
from nsde_policy.eval.rollout import Player, RolloutConfig
assert has_display()
shown, show = [], Window.show
def counting(self, picture):
    show(self, picture)
    shown.append(picture.shape)
    if len(shown) == 3:
        {end}
Window.show = counting
play_in_window(Player(None, RolloutConfig()), [100_000, 100_001])
assert 3 <= len(shown) <= 4, shown
assert not pygame.display.get_init()
"""
    env = {"SDL_VIDEODRIVER": "dummy", "DISPLAY": ":0", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=Path(__file__).parents[2], check=True)


@pytest.mark.parametrize("display", [None, ":77"])
def test_without_a_display_within_reach_there_is_no_window(display, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    if display:
        monkeypatch.setenv("DISPLAY", display)
    assert not rendering.has_display()
