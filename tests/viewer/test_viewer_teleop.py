"""Tests for nsde_policy/viewer/record_app.py and `nsde-policy collect` by hand, on the stage and in a browser."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from websockets.sync.client import connect

from examples.record_demonstrations import pusher
from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.data.collection import Collection
from nsde_policy.data.zarr_store.store import Store
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.errors import DemoError, EpisodeError, ProtocolError
from nsde_policy.inference.policy import Policy
from nsde_policy.viewer import record_app as teleop
from nsde_policy.viewer.messages import Aim, Command, Discard, Keep, Pause, Release, Reset, Take, Undo, encode
from nsde_policy.viewer.record_app import Teleop, by_hand
from tests.helpers.browser import DESKTOP, chromium, watched
from tests.helpers.viewer_servers import act, ask, heard, shown
from tests.viewer.test_viewer_page import on_screen, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

START = 300_000


def opened(path: Path) -> Collection:
    return Collection.open(path, by_hand("benchmark"))


def run(stage: Teleop, *events: Command | int) -> dict[str, Any]:
    """Commands, and numbers of ticks in between; returns the state."""
    act(stage, *events)
    return stage.state()


def test_an_episode_is_what_was_seen_and_where_the_pointer_was(tmp_path: Path):
    with opened(tmp_path / "d.zarr") as collection:
        stage = Teleop(collection, seed_start=START)
        assert run(stage, 5)["phase"] == "ready"
        run(stage, Aim(100.0, 120.0), Take(), 3, Aim(600.0, 40.0), 4)
        assert run(stage)["phase"] == "recording"
        encode(stage.frame())
        assert run(stage, Keep())["kept"] == 1
    demos = load_demonstrations(tmp_path / "d.zarr")
    env = PushTEnv()
    obs, _ = env.reset(seed=START)
    for seen, sent, aimed in zip(demos.obs, demos.act, [(100, 120)] * 3 + [(512, 40)] * 4, strict=True):
        assert np.array_equal(seen, np.asarray(obs, np.float32))
        assert sent.tolist() == list(aimed)
        obs, *_ = env.step(np.array(aimed, float))


def test_kept_the_next_seed_follows_discarded_the_same_and_undone_the_one_before(tmp_path: Path):
    moved: tuple[Command | int, ...] = (Aim(200.0, 200.0), Take(), 4)
    with opened(tmp_path / "d.zarr") as collection:
        stage = Teleop(collection, seed_start=7)
        assert run(stage, *moved, Keep())["seed"] == 8
        assert run(stage, *moved, Discard())["seed"] == 8
        assert run(stage, *moved, Keep(), *moved, Keep())["kept"] == 3
        undone = run(stage, *moved, Undo())
        assert (undone["kept"], undone["seed"], undone["phase"]) == (2, 9, "ready")
        assert run(stage, Reset(500))["seed"] == 500
        run(stage, *moved, Keep())
    with opened(tmp_path / "d.zarr") as collection:
        stage = Teleop(collection, seed_start=7)
        assert [kept.seed for kept in collection.episodes] == [7, 8, 500]
        assert (run(stage)["kept"], run(stage)["seed"]) == (3, 501)


def test_an_episode_ends_with_success_or_after_two_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(teleop, "LONGEST", 20)
    with opened(tmp_path / "d.zarr") as collection:
        stage = Teleop(collection, seed_start=3)
        assert run(stage, Aim(10.0, 10.0), Take(), 50)["phase"] == "done"
        assert stage.frame()["last"] == 20
        run(stage, Keep())
        assert collection.episodes[0].success is False
        assert 0 <= collection.episodes[0].max_reward < 1


def test_while_nobody_points_nothing_is_recorded(tmp_path: Path):
    with opened(tmp_path / "d.zarr") as collection:
        stage = Teleop(collection, seed_start=3)
        run(stage, Release())
        assert run(stage)["phase"] == "ready"
        told = run(stage, Aim(200.0, 200.0), Take(), 4) and stage.revision
        assert run(stage, Release(), 30)["phase"] == "paused"
        assert (stage.frame()["last"], stage.revision > told) == (4, True)
        told = stage.revision
        assert run(stage, Aim(220.0, 200.0), 3)["phase"] == "recording"
        assert stage.revision > told
        run(stage, Release(), 30, Keep())
    assert load_demonstrations(tmp_path / "d.zarr").act.tolist() == [[200, 200]] * 4 + [[220, 200]] * 3


def test_a_page_that_goes_away_stops_recording_and_another_one_goes_on(tmp_path: Path):
    with opened(tmp_path / "d.zarr") as collection, shown(Teleop(collection, seed_start=3)) as house:
        with house.line() as line:
            ask(line, "aim", x=90, y=90)
            ask(line, "take")
            heard(line, "state", lambda message: message["phase"] == "recording")
        with house.line() as line:
            heard(line, "state", lambda message: message["phase"] == "paused")
            ask(line, "aim", x=90, y=90)
            heard(line, "state", lambda message: message["phase"] == "recording")


def test_behind_the_last_seed_comes_the_first_and_no_recording_is_kept_twice(tmp_path: Path):
    moved: tuple[Command | int, ...] = (Aim(200.0, 200.0), Take(), 4)
    with opened(tmp_path / "d.zarr") as collection:
        stage = Teleop(collection, seed_start=2**32 - 1)
        assert run(stage, *moved, Keep())["seed"] == 0
        with pytest.raises(EpisodeError, match="move first"):
            stage.handle(Keep())
        assert [kept.seed for kept in collection.episodes] == [2**32 - 1]
        assert run(Teleop(collection, seed_start=5))["seed"] == 0


def test_nothing_is_kept_of_an_episode_that_has_not_begun(tmp_path: Path):
    with opened(tmp_path / "d.zarr") as collection:
        stage = Teleop(collection, seed_start=3)
        for early in ((), (Take(),), (Aim(1.0, 1.0), Take(), 1)):
            run(stage, *early)
            told = stage.revision
            with pytest.raises(EpisodeError, match="move first"):
                stage.handle(Keep())
            assert stage.revision == told
        with pytest.raises(EpisodeError, match="no episode"):
            stage.handle(Undo())
        with pytest.raises(ProtocolError, match="nsde-policy play"):
            stage.handle(Pause(True))


def test_a_store_of_a_policy_is_not_mixed_with_demonstrations_by_hand(tmp_path: Path, capsys: Any):
    store = tmp_path / "made.zarr"
    made = ["--policy", "shipped", "--episodes", "1", "--workers", "1"]
    assert main(["collect", "--out", str(store), *made]) == 0
    with pytest.raises(DemoError, match="policy"):
        opened(store)
    assert main(["collect", "--out", str(store), "--port", "0"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", [["--chunk", "4"], ["--only-success"], ["--sampling", "alpha=1"], ["--seed-start", "-1"]]
)
def test_flags_that_mean_nothing_by_hand_are_refused_before_a_store_is_begun(tmp_path: Path, args: list[str]):
    assert main(["collect", "--out", str(tmp_path / "d.zarr"), *args]) == 2
    assert not (tmp_path / "d.zarr").exists()


def keep_one(port: int, held: int) -> None:
    """Record an episode and keep it, then be in the middle of the next."""
    with connect(f"ws://127.0.0.1:{port}/live", proxy=None) as line:
        assert heard(line, "state")["kept"] == held
        for then in ("keep", None):
            ask(line, "aim", x=90, y=90)
            ask(line, "take")
            heard(line, "frame", lambda message: message["last"] > 4)
            if then:
                ask(line, then)
                heard(line, "state", lambda message: message["kept"] == held + 1)


def test_killed_while_recording_the_kept_episodes_are_safe(tmp_path: Path):
    store = tmp_path / "d.zarr"
    command = [
        sys.executable,
        "-m",
        "nsde_policy.cli.main",
        "collect",
        "--port",
        "0",
        "--json",
        "--out",
        str(store),
    ]
    for held in (0, 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                assert process.stdout is not None
                keep_one(json.loads(process.stdout.readline())["port"], held)
            finally:
                os.kill(process.pid, signal.SIGKILL)
    assert len(load_demonstrations(store).episode_ends) == 2


def lead(page: "Page", seconds: float) -> None:
    """Bring the pointer to the agent, then push the block as the example's script does."""
    seen = "viewer.frame.lanes[0].trail.at(-1).slice(0, 2).join()"
    drawn = f"viewer.lanes[0].pose.slice(0, 2).join() === {seen}"
    until(page, f"viewer.frame.epoch === viewer.state.epoch && {drawn}")
    page.mouse.move(*on_screen(page, *page.evaluate("viewer.lanes[0].pose.slice(0, 2)")))
    until(page, "viewer.state.phase === 'recording'")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and page.evaluate("viewer.state.phase") == "recording":
        target = pusher(np.array(page.evaluate("viewer.lanes[0].pose")))
        page.mouse.move(*on_screen(page, *np.clip(target, 2, 510)))
        page.wait_for_timeout(60)


def test_a_person_with_a_mouse_records_a_store_that_trains_at_once(tmp_path: Path, capsys: Any):
    store = tmp_path / "my_demos.zarr"
    with (
        opened(store) as collection,
        shown(Teleop(collection, seed_start=START)) as house,
        chromium() as browser,
    ):
        seen = watched(browser.new_context(viewport=DESKTOP))
        page = seen.page
        page.goto(house.url)
        until(page, "viewer.frame && viewer.drawn > 3")
        assert page.locator("#keep").is_disabled()
        lead(page, 4)
        page.keyboard.press("Enter")
        until(page, "viewer.state.kept === 1 && viewer.state.phase === 'ready' && viewer.frame")
        assert page.locator("#kept").inner_text() == "1"
        lead(page, 1)
        page.keyboard.press("Backspace")
        until(page, "viewer.state.kept === 1 && viewer.state.phase === 'ready' && viewer.frame")
        lead(page, 3)
        page.click("#keep")
        until(page, "viewer.state.kept === 2 && viewer.state.phase === 'ready' && viewer.frame")
        lead(page, 1)
        page.click("#keep")
        until(page, "viewer.state.kept === 3")
        page.keyboard.press("u")
        until(page, "viewer.state.kept === 2")
        assert seen.errors == []
    demos = load_demonstrations(store)
    assert len(demos.episode_ends) == 2
    assert np.abs(np.diff(demos.obs[: demos.episode_ends[0], :2], axis=0)).max() > 1, "the agent was led"
    with Store(store) as written:
        assert written.attributes["made_with"]["by"] == "teleoperation"
        assert written.attributes["sessions"][0]["versions"]["nsde_policy"]
    assert main(["data", "check", str(store)]) == 0
    run_dir = tmp_path / "run"
    short = ["--preset", "fast", "--train.steps", "20", "--train.batch-size", "32", "--device", "cpu"]
    assert main(["train", "--demos", str(store), "--out", str(run_dir), *short]) == 0
    action = Policy.from_pretrained(run_dir).select_action(demos.obs[0])
    assert np.isfinite(action).all()
