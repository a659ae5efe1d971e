"""Tests for nsde_policy/viewer/camera.py: policies that observe pixels on the live page."""

import base64
import io
from pathlib import Path

import numpy as np
import pygame
import pytest

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.errors import ConfigError
from nsde_policy.eval.rollout import Player, RolloutConfig
from nsde_policy.tasks import get_task
from nsde_policy.viewer.camera import check_table_policy, draw_camera_frame
from nsde_policy.viewer.launch import load_runners
from nsde_policy.viewer.messages import Scrub, SelectMethods, SetControl, encode_message
from nsde_policy.viewer.play_app import PlayApp
from tests.helpers.browser import DESKTOP, chromium, open_page, wait_until
from tests.helpers.pixel_runs import KEYPOINTS
from tests.helpers.viewer_servers import SEED, run_events, run_viewer


@pytest.fixture
def app(pixel_run: Path) -> PlayApp:
    return PlayApp(load_runners([pixel_run, SHIPPED_POLICY]), seed=SEED, plan_timeout_s=60)


def test_a_policy_with_a_camera_plays_as_in_eval(pixel_run: Path, app: PlayApp):
    run_events(app, 11)
    config = RolloutConfig(env_kwargs={"max_episode_steps": 11})
    trace = Player(pixel_run, config).play(SEED).trace
    commands = [panel["target"] for panel in app.frame()["panels"]]
    assert commands == [np.round(trace.actions[-1], 1).tolist()]


def test_frames_hold_the_picture_that_the_policy_encodes(app: PlayApp):
    run_events(app, SetControl("paths", 3), 2)
    camera = app.frame()["panels"][0]["camera"]
    (table,) = app._tables
    surface = pygame.image.load(io.BytesIO(base64.b64decode(camera["png"])))
    picture = pygame.surfarray.array3d(surface).swapaxes(0, 1)
    obs = table.now.state
    assert np.array_equal(picture, benchmark_frame(obs[:2], obs[2:]))
    policy = app._panels[0].policy
    agent, frame = obs[:2], draw_camera_frame(table.table, obs, policy.spec.cameras[0])
    code = policy.encode({"observation.state": agent, "observation.images.img": frame})[2:]
    first = [path[:2] for path in camera["paths"]]
    assert np.allclose(first, 500 * (code.reshape(KEYPOINTS, 2) + 1), atol=1)
    assert [len(row) for row in camera["ends"]] == [2 * 3] * KEYPOINTS
    assert len(encode_message(app.frame())) < 20_000


def test_the_past_and_a_forecast_without_paths_show_their_picture(app: PlayApp):
    run_events(app, 3)
    now = app.frame()["panels"][0]["camera"]["png"]
    run_events(app, SetControl("paths", 0), 8, Scrub(3))
    camera = app.frame()["panels"][0]["camera"]
    assert camera["png"] == now
    assert [len(path) for path in camera["paths"]] == [2] * KEYPOINTS


def test_policies_of_other_robots_are_refused(pixel_run: Path):
    spec, table = Player(pixel_run, RolloutConfig()).policy.spec, get_task("pusht").live_table()
    with pytest.raises(ConfigError, match="arm has 2 observations, 2 cameras and 2 actions"):
        check_table_policy(type(spec)(**{**vars(spec), "cameras": spec.cameras * 2}), "arm", table)


@pytest.mark.browser
def test_the_page_draws_the_camera_beside_the_table(app: PlayApp):
    with run_viewer(app) as viewer, chromium() as browser:
        context = browser.new_context(viewport=DESKTOP)
        seen = open_page(context)
        page = seen.page
        page.goto(viewer.url)
        wait_until(page, "viewer.panels[0].camera.drawn > 2")
        figure = page.locator(".panel header .camera")
        assert figure.is_visible()
        assert "96 × 96 px" in figure.inner_text()
        assert page.locator("[data-for=camera]").is_visible()
        pixel = "[...viewer.panels[0].camera.canvas.getContext('2d').getImageData(240, 20, 1, 1).data]"
        assert page.evaluate(pixel) == [255, 255, 255, 255], "the upper part of the table is white"
        viewer.server.simulation.submit(SelectMethods(("run", "shipped")))
        wait_until(page, "viewer.frame.panels.length === 2 && viewer.panels[0].camera.drawn > 0")
        assert page.locator("#camera-card .camera:visible").count() == 1, "the second has no camera"
        context.close()
        assert not seen.errors
