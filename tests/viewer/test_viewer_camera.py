"""Tests for nsde_policy/viewer/camera.py: policies that observe pixels on the live page."""

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pygame
import pytest

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.errors import EnvError
from nsde_policy.eval.rollouts.runner import EnvRunner, RolloutConfig
from nsde_policy.viewer.messages import SetControl, encode_message
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import load_runners
from tests.helpers.browser import check_layout, wait_until
from tests.helpers.pixel_runs import KEYPOINTS
from tests.helpers.viewer_servers import SEED, run_events, run_viewer, show_viewer


@pytest.fixture
def app(pixel_run: Path) -> PlayApp:
    return PlayApp(load_runners([pixel_run, SHIPPED_POLICY]), seed=SEED, plan_timeout_s=60)


def test_a_policy_with_a_camera_plays_as_in_eval(pixel_run: Path, app: PlayApp):
    run_events(app, 11)
    trace = EnvRunner(pixel_run, RolloutConfig(env_kwargs={"max_episode_steps": 11})).run_one(SEED).trace
    commands = [panel["target"] for panel in app.frame()["panels"]]
    assert commands == [np.round(trace.actions[-1], 1).tolist()]


def test_frames_hold_the_picture_that_the_policy_encodes(app: PlayApp):
    run_events(app, SetControl("paths", 3), 2)
    camera = app.frame()["panels"][0]["camera"]
    surface = pygame.image.load(io.BytesIO(base64.b64decode(camera["png"])))
    picture = pygame.surfarray.array3d(surface).swapaxes(0, 1)
    agent, block = np.split(app._tables[0].state, [2])
    assert np.array_equal(picture, benchmark_frame(agent, block))
    policy = app._panels[0].policy
    code = policy.encode({"observation.state": agent, "observation.images.img": picture})[2:]
    first = [path[:2] for path in camera["paths"]]
    assert np.allclose(first, 500 * (code.reshape(KEYPOINTS, 2) + 1), atol=1)
    assert [len(row) for row in camera["ends"]] == [2 * 3] * KEYPOINTS
    assert len(encode_message(app.frame())) < 20_000


def test_policies_of_other_robots_are_refused(pixel_run: Path):
    (runner,) = load_runners([pixel_run])
    runner.policy.record = replace(runner.policy.record, task="avoiding", env_kwargs={})
    with pytest.raises(EnvError, match="the images of its observation are none"):
        PlayApp([runner], seed=SEED)


@pytest.mark.browser
def test_the_page_draws_the_camera_next_to_the_table(app: PlayApp, browser: Any):
    with run_viewer(app) as viewer, show_viewer(browser, viewer) as page:
        wait_until(page, "viewer.panels[0].camera.drawn > 2")
        figure = page.locator(".panel header .camera")
        assert figure.is_visible()
        assert "96 × 96 px" in figure.inner_text()
        assert page.locator("[data-for=camera]").is_visible()
        pixel = "[...viewer.panels[0].camera.canvas.getContext('2d').getImageData(240, 20, 1, 1).data]"
        assert page.evaluate(pixel) == [255, 255, 255, 255], "the upper part of the table is white"
        page.evaluate("send({ do: 'select_methods', methods: ['run', 'shipped'] })")
        wait_until(page, "viewer.frame.panels.length === 2 && viewer.panels[0].camera.drawn > 0")
        assert page.locator("#camera-card .camera:visible").count() == 1, "the second has no camera"
        page.evaluate("send({ do: 'select_methods', methods: ['shipped'] })")
        wait_until(page, "viewer.state.panels.join() === 'shipped'")
        assert page.locator("#camera-card").is_hidden(), "it has no camera"
        page.evaluate("send({ do: 'select_methods', methods: ['run'] })")
        wait_until(page, "viewer.panels[0].camera.drawn > 0 && viewer.panels.length === 1")
        check_layout(page, "#pause")
