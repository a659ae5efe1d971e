"""Tests for nsde_policy/viewer/record_app.py and `nsde-policy collect` by hand."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from websockets.sync.client import connect

from examples.record_demonstrations import pusher
from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations, open_images
from nsde_policy.data.zarr_store.store import Store
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.envs.pusht.live import PushTTable
from nsde_policy.errors import DemoError, RemoteError
from nsde_policy.tasks import get_task
from nsde_policy.viewer.messages import (
    ClientMessage,
    Discard,
    KeepEpisode,
    MoveAgent,
    Pause,
    Release,
    Reset,
    Undo,
    encode_message,
)
from nsde_policy.viewer.record_app import RecordApp, open_collection
from tests.helpers.browser import DESKTOP, check_layout, wait_until
from tests.helpers.viewer_servers import receive, run_events, run_viewer, send, show_viewer, to_screen

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

START = 300_000
PUSHT = get_task("pusht")


def run(app: RecordApp, *events: ClientMessage | int) -> dict[str, Any]:
    """Run messages and numbers of ticks, and return the state; the pointer reaches the agent first."""
    for event in events:
        if isinstance(event, MoveAgent):
            app.handle(MoveAgent(*app.frame()["panels"][0]["trail"][-1][:2]))
        run_events(app, event)
    return app.state()


def test_an_episode_holds_observations_and_pointer_positions(tmp_path: Path):
    with open_collection(tmp_path / "d.zarr", PUSHT) as collection:
        app = RecordApp(PUSHT, collection, seed_start=START)
        assert run(app, 5)["phase"] == "ready"
        run(app, MoveAgent(100.0, 120.0), 3, MoveAgent(600.0, 40.0), 4)
        assert run(app)["phase"] == "recording"
        encode_message(app.frame())
        assert run(app, KeepEpisode())["kept"] == 1
    demos = load_demonstrations(tmp_path / "d.zarr")
    env = PushTEnv()
    obs, _ = env.reset(seed=START)
    for seen, sent, aimed in zip(demos.obs, demos.act, [(100, 120)] * 3 + [(512, 40)] * 4, strict=True):
        assert np.array_equal(seen, np.asarray(obs, np.float32))
        assert sent.tolist() == list(aimed)
        obs, *_ = env.step(np.array(aimed, float))


def test_camera_frames_are_recorded_on_request(tmp_path: Path):
    images = ("img",)
    with open_collection(tmp_path / "d.zarr", PUSHT, images) as collection:
        app = RecordApp(PUSHT, collection, seed_start=START, images=images)
        run(app, MoveAgent(256, 256), 4, Discard())
        run(app, MoveAgent(256, 256), 5, KeepEpisode())
    obs = load_demonstrations(tmp_path / "d.zarr").obs.astype(float)
    drawn = np.stack([benchmark_frame(row[:2], row[2:]) for row in obs])
    frames = open_images(tmp_path / "d.zarr")
    assert frames.shape == (5, 96, 96, 3)
    assert (frames[:] == drawn).mean() > 0.999
    with pytest.raises(DemoError, match="images"):
        open_collection(tmp_path / "d.zarr", PUSHT)


def test_keep_goes_to_the_next_seed_discard_repeats_it_undo_goes_back(tmp_path: Path):
    moved: tuple[ClientMessage | int, ...] = (MoveAgent(200.0, 200.0), 4)
    with open_collection(tmp_path / "d.zarr", PUSHT) as collection:
        app = RecordApp(PUSHT, collection, seed_start=7)
        assert run(app, *moved, KeepEpisode())["seed"] == 8
        assert run(app, *moved, Discard())["seed"] == 8
        assert run(app, *moved, KeepEpisode(), *moved, KeepEpisode())["kept"] == 3
        undone = run(app, *moved, Undo())
        assert (undone["kept"], undone["seed"], undone["phase"]) == (2, 9, "ready")
        assert run(app, Reset(500))["seed"] == 500
        run(app, *moved, KeepEpisode())
    with open_collection(tmp_path / "d.zarr", PUSHT) as collection:
        app = RecordApp(PUSHT, collection, seed_start=7)
        assert [kept.seed for kept in collection.episodes] == [7, 8, 500]
        assert (run(app)["kept"], run(app)["seed"]) == (3, 501)


def test_an_episode_ends_at_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PushTTable, "longest_s", 2.0)
    with open_collection(tmp_path / "d.zarr", PUSHT) as collection:
        app = RecordApp(PUSHT, collection, seed_start=3)
        assert run(app, MoveAgent(10.0, 10.0), 50)["phase"] == "done"
        assert app.frame()["last"] == 20
        run(app, KeepEpisode())
        assert collection.episodes[0].success is False
        assert 0 <= collection.episodes[0].score < 1


def test_recording_pauses_while_the_pointer_is_away(tmp_path: Path):
    with open_collection(tmp_path / "d.zarr", PUSHT) as collection:
        app = RecordApp(PUSHT, collection, seed_start=3)
        run(app, Release())
        assert run(app)["phase"] == "ready"
        run(app, MoveAgent(200.0, 200.0), 4)
        before = app.revision
        assert run(app, Release(), 30)["phase"] == "paused"
        assert (app.frame()["last"], app.revision > before) == (4, True)
        app.handle(MoveAgent(500.0, 500.0))
        assert run(app, 3)["phase"] == "paused", "the pointer has not reached the agent"
        before = app.revision
        assert run(app, MoveAgent(220.0, 200.0), 3)["phase"] == "recording"
        assert app.revision > before
        run(app, Release(), 30, KeepEpisode())
    assert load_demonstrations(tmp_path / "d.zarr").act.tolist() == [[200, 200]] * 4 + [[220, 200]] * 3


def test_only_a_new_recording_of_some_steps_can_be_kept(tmp_path: Path):
    with open_collection(tmp_path / "d.zarr", PUSHT) as collection:
        app = RecordApp(PUSHT, collection, seed_start=2**32 - 1)
        for early in ((), (MoveAgent(1.0, 1.0), 1)):
            run(app, *early)
            before = app.revision
            with pytest.raises(DemoError, match="move first"):
                app.handle(KeepEpisode())
            assert app.revision == before
        with pytest.raises(DemoError, match="no episode"):
            app.handle(Undo())
        with pytest.raises(RemoteError, match="nsde-policy play"):
            app.handle(Pause(True))
        assert run(app, 4, KeepEpisode())["seed"] == 0, "after the largest seed comes 0"
        with pytest.raises(DemoError, match="move first"):
            app.handle(KeepEpisode())
        assert [kept.seed for kept in collection.episodes] == [2**32 - 1]


@pytest.mark.slow
def test_a_kept_episode_survives_a_kill_while_recording_the_next(tmp_path: Path):
    store = tmp_path / "d.zarr"
    options = ["--port", "0", "--json", "--out", str(store)]
    command = [sys.executable, "-m", "nsde_policy", "collect", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["port"]
            with connect(f"ws://127.0.0.1:{port}/live", proxy=None) as client:
                for kept in (0, 1):
                    receive(client, "state", lambda message, kept=kept: message["kept"] == kept)
                    x, y = receive(client, "frame")["panels"][0]["target"]
                    send(client, "move_agent", x=x, y=y)
                    receive(client, "frame", lambda message: message["last"] > 4)
                    if not kept:
                        send(client, "keep_episode")
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert len(load_demonstrations(store).episode_ends) == 1


# In a browser


@pytest.fixture
def recording(browser: "Browser", tmp_path: Path) -> "Iterator[tuple[Page, Path]]":
    """The page of `collect` with Push-T, and its store."""
    store = tmp_path / "my_demos.zarr"
    with (
        open_collection(store, PUSHT) as collection,
        run_viewer(RecordApp(PUSHT, collection, seed_start=START)) as viewer_server,
        show_viewer(browser, viewer_server) as page,
    ):
        yield page, store


def lead(page: "Page", periods: int) -> None:
    """Bring the pointer to the agent, then push the block as the example does, for some control periods."""
    seen = "viewer.frame.panels[0].trail.at(-1).slice(0, 2).join()"
    drawn = f"viewer.panels[0].pose.slice(0, 2).join() === {seen}"
    wait_until(page, f"viewer.frame.epoch === viewer.state.epoch && {drawn}")
    page.mouse.move(*to_screen(page, *page.evaluate("viewer.panels[0].pose.slice(0, 2)")))
    wait_until(page, "viewer.state.phase === 'recording'")
    while page.evaluate(f"viewer.state.phase === 'recording' && !(viewer.frame?.last >= {periods})"):
        target = pusher(np.array(page.evaluate("viewer.panels[0].pose")))
        page.mouse.move(*to_screen(page, *np.clip(target, 2, 510)))
        page.wait_for_timeout(60)


@pytest.mark.browser
def test_recording_with_a_mouse_gives_a_store_that_trains(
    recording: "tuple[Page, Path]", tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page, store = recording
    assert page.locator("#keep").is_disabled()
    lead(page, 20)
    page.keyboard.press("Enter")
    wait_until(page, "viewer.state.kept === 1 && viewer.state.phase === 'ready' && viewer.frame")
    assert page.locator("#kept").inner_text() == "1"
    lead(page, 3)
    page.keyboard.press("Backspace")
    wait_until(page, "viewer.state.kept === 1 && viewer.state.phase === 'ready' && viewer.frame")
    lead(page, 12)
    page.click("#keep")
    wait_until(page, "viewer.state.kept === 2 && viewer.state.phase === 'ready' && viewer.frame")
    page.keyboard.press("u")
    wait_until(page, "viewer.state.kept === 1")
    demos = load_demonstrations(store)
    assert len(demos.episode_ends) == 1
    assert np.abs(np.diff(demos.obs[:, :2], axis=0)).max() > 1, "the agent must have moved"
    with Store(store) as written:
        assert written.attributes["made_with"]["by"] == "teleoperation"
        assert written.attributes["sessions"][0]["versions"]["nsde_policy"]
    short = ["--preset", "fast", "--train.steps", "5", "--train.batch-size", "32", "--device", "cpu"]
    short += ["--selection.train.steps", "2"]
    assert main(["train", "--demos", str(store), "--out", str(tmp_path / "run"), *short]) == 0


@pytest.mark.browser
def test_a_recording_survives_keys_seed_input_and_a_pointer_that_leaves(recording: "tuple[Page, Path]"):
    page, _ = recording
    check_layout(page, "#keep")
    page.set_viewport_size(DESKTOP)
    assert page.locator("#live").inner_text() == "ready"
    x, y = page.evaluate("viewer.panels[0].pose.slice(0, 2)")
    page.mouse.move(*to_screen(page, x, y))
    wait_until(page, "viewer.state.phase === 'recording'")
    assert page.locator("#live").inner_text() == "recording at 10 Hz"
    page.mouse.move(*to_screen(page, x + 20, y), steps=8)
    wait_until(page, "viewer.frame.last > 4")
    page.keyboard.press("u")
    assert "discard the recording first" in page.locator("#notice").inner_text()
    page.fill("#seed", "5")
    page.keyboard.press("Enter")
    page.wait_for_timeout(200)
    assert page.evaluate("[viewer.state.seed, viewer.frame.last > 4]") == [START, True]
    page.mouse.move(5, 5)
    wait_until(page, "viewer.state.phase === 'paused'")
    x, y = page.evaluate("viewer.panels[0].pose.slice(0, 2)")
    corner = (500, 500) if math.hypot(x - 500, y - 500) > 60 else (10, 10)
    page.mouse.move(*to_screen(page, *corner))
    page.wait_for_timeout(300)
    assert page.evaluate("viewer.state.phase") == "paused", "recording continues only at the agent"
    page.mouse.move(*to_screen(page, x, y))
    wait_until(page, "viewer.state.phase === 'recording'")
