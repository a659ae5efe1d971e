"""Tests for nsde_policy/viewer/play_app.py, policy_runner.py and forecast.py, without a server."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.errors import EnvError, PlanError, RemoteError
from nsde_policy.eval.rollout import Player, RolloutConfig
from nsde_policy.inference.policy import Policy
from nsde_policy.viewer.launch import load_runners, make_distinct_names
from nsde_policy.viewer.messages import (
    ClientMessage,
    Drag,
    MoveAgent,
    Pause,
    Release,
    Reset,
    Scrub,
    SelectMethods,
    SetControl,
    Step,
    encode_message,
)
from nsde_policy.viewer.play_app import REST_S, PlayApp
from nsde_policy.viewer.policy_runner import PolicyRunner
from tests.helpers.viewer_servers import SEED, load_two_methods, run_events


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> list[PolicyRunner]:
    return load_two_methods(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def app(methods: list[PolicyRunner]) -> PlayApp:
    return PlayApp(methods, seed=SEED, plan_timeout_s=60)


def run(app: PlayApp, *events: ClientMessage | int) -> dict[str, Any]:
    """Run messages and numbers of ticks, and return the last frame."""
    run_events(app, *events)
    return app.frame()


def tick_until(app: PlayApp, last: int) -> None:
    """Tick until so many periods were played, without making frames."""
    while len(app.state()["progress"][0]) <= last:
        app.tick()
        time.sleep(0.002)


def test_an_undisturbed_seed_is_the_episode_that_eval_scores(app: PlayApp):
    result = Player(SHIPPED_POLICY, RolloutConfig()).play(SEED)
    frame = run(app, 1000)
    assert result.success
    assert frame["panels"][0]["solved"]
    assert frame["last"] == result.steps
    assert frame["panels"][0]["solved_s"] == result.steps / 10
    assert run(app, Scrub(result.steps - 1))["panels"][0]["solved_s"] is None
    assert app.state()["progress"][0] == [round(c, 3) for c in result.trace.progress]


def test_continuing_from_the_past_replays_the_same_episode(app: PlayApp):
    before = run(app, 45)
    covered = app.state()["progress"]
    again = run(app, Scrub(21), Pause(False), 24)
    assert again["last"] == before["last"]
    assert again["panels"][0]["trail"] == before["panels"][0]["trail"]
    assert app.state()["progress"] == covered
    assert again["epoch"] > before["epoch"], "pages must not interpolate between the two pasts"


def test_scrubbing_pauses_and_changes_nothing(app: PlayApp):
    before = run(app, 30)
    looked = run(app, Scrub(10), 5)
    assert (looked["at"], looked["last"], looked["paused"]) == (10, 30, True)
    assert run(app, Scrub(10**9))["panels"][0]["trail"][-1] == before["panels"][0]["trail"][-1]
    assert run(app, Scrub(-5))["at"] == 0


def test_pause_stops_time_and_step_runs_one_period(app: PlayApp):
    assert run(app, 5, Pause(True), 7)["last"] == 5
    frame = run(app, Step(), 7)
    assert (frame["last"], frame["paused"]) == (6, True)
    assert run(app, Pause(False), 3)["last"] == 9


def test_reset_repeats_the_episode_of_a_seed(app: PlayApp):
    first = run(app, Reset(42), 8)["panels"][0]["trail"]
    assert run(app, 20, Reset(42), 8)["panels"][0]["trail"] == first
    assert app.state()["seed"] == 42


@pytest.mark.slow
def test_policy_recovers_after_the_block_is_dragged_away(app: PlayApp):
    assert run(app, 400)["panels"][0]["solved"]
    x, y, angle = run(app)["panels"][0]["trail"][-1][2:]
    away = Drag(0, "block", x + 90, y - 60, angle)
    frame = run(app, away, Release(), 1)
    assert frame["panels"][0]["progress"] < 0.6
    assert frame["panels"][0]["trail"][-1][2:4] == pytest.approx([x + 90, y - 60], abs=0.02)
    run(app, 500)
    assert max(app.state()["progress"][0][frame["last"] :]) > 0.9


def test_a_dragged_agent_follows_until_released(app: PlayApp):
    dragged = run(app, 10, Drag(0, "agent", 30.0, 480.0), 25)["panels"][0]
    assert dragged["trail"][-1][:2] == pytest.approx([30, 480], abs=2)
    assert dragged["target"] == [30, 480]
    released = run(app, Release(), 2)["panels"][0]
    assert released["target"] != [30, 480]


def test_block_can_be_dragged_while_paused(app: PlayApp):
    before = run(app, 12, Pause(True), 3)["panels"][0]["trail"][-1]
    after = run(app, Drag(0, "block", 380.0, 120.0, 1.0), 12, Release(), 2)
    x, y = after["panels"][0]["trail"][-1][2:4]
    assert (x, y) == pytest.approx((380, 120), abs=0.5)
    assert np.hypot(*np.subtract(after["panels"][0]["trail"][-1][:2], before[:2])) < 60
    assert after["paused"]
    assert run(app, 5)["last"] == after["last"]


def test_two_panels_start_in_the_same_state_and_a_drag_moves_both_or_one(app: PlayApp):
    frame = run(app, SelectMethods(("shipped", "neighbours")))
    assert frame["panels"][0]["trail"] == frame["panels"][1]["trail"]
    both = run(app, 3, Drag(1, "block", 200.0, 380.0, 0.5), 2, Release(), 1)
    assert both["panels"][0]["trail"][0][2:4] == pytest.approx([200, 380], abs=8)
    assert both["panels"][1]["trail"][0][2:4] == pytest.approx([200, 380], abs=8)
    one = run(app, SetControl("drag_both", 0), Drag(1, "block", 380.0, 120.0, 0.5), 2, Release(), 1)
    assert np.hypot(*np.subtract(one["panels"][0]["trail"][0][2:4], [380, 120])) > 100
    assert {"shipped", "neighbours"} == {name for name, ms in app.state()["latency"].items() if ms}


def test_only_a_neural_sde_has_sampled_paths_and_a_drift_field(app: PlayApp):
    frame = run(
        app, SelectMethods(("shipped", "neighbours")), SetControl("paths", 7), SetControl("drift_field", 1), 2
    )
    sde, neighbours = frame["panels"]
    assert len(sde["fan"]["paths"]) == len(sde["fan"]["sigma"]) == 7
    assert sde["fan"]["paths"][0][:2] == pytest.approx(sde["trail"][-1][:2], abs=0.1)
    assert len(sde["field"]) > 20
    assert neighbours["fan"] is None
    assert neighbours["field"] is None
    assert neighbours["plan"]
    encode_message(frame)


def test_diffusion_strength_scales_the_width_of_the_fan(app: PlayApp):
    def width(strength: float) -> float:
        frame = run(app, SetControl("diffusion", strength))
        return float(np.std(np.array(frame["panels"][0]["fan"]["paths"])[:, -2:], axis=0).sum())

    def sigma(strength: float) -> float:
        return float(np.mean(run(app, SetControl("diffusion", strength))["panels"][0]["fan"]["sigma"]))

    run(app, 10, Pause(True))
    assert width(0) < 1e-9
    assert width(0.5) < width(2)
    assert sigma(2) == pytest.approx(2 * sigma(1), rel=0.15)


def test_chunk_control_sets_the_length_of_plans(app: PlayApp):
    assert run(app, SetControl("chunk", 3), 1)["panels"][0]["latency"]["actions"] == 3
    assert len(run(app)["panels"][0]["plan"]) == 2
    assert len(run(app, SetControl("chunk", 12), 1)["panels"][0]["plan"]) == 11


def test_next_seed_starts_after_a_success_only_if_enabled(app: PlayApp):
    periods = round(REST_S * 10)
    rested = run(app, 400, periods)
    assert run(app, 10 * periods)["last"] == rested["last"]
    run(app, SetControl("next_when_solved", 1), periods)
    assert app.state()["seed"] == SEED + 1


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (SelectMethods(("shipped", "unknown")), "shipped, neighbours"),
        (Drag(1, "block", 1.0, 1.0), "table 1"),
        (SetControl("alpha", 1e9), "alpha must be from 0 to 3"),
        (MoveAgent(1.0, 2.0), "nsde-policy collect"),
    ],
)
def test_a_rejected_message_changes_nothing(app: PlayApp, message: ClientMessage, expected: str):
    before, revision = run(app, 4), app.revision
    with pytest.raises((RemoteError, EnvError), match=expected):
        app.handle(message)
    assert app.frame()["panels"] == before["panels"]
    assert app.revision == revision


@contextmanager
def block_plans(policy: Policy) -> Iterator[threading.Event]:
    """Block the plans of a policy until the yielded event is set."""
    go, plan = threading.Event(), policy.plan

    def waiting(*args: Any, **options: Any) -> Any:
        assert go.wait(30)
        return plan(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(policy, "plan", waiting)
        yield go


@pytest.mark.slow
def test_a_slow_planner_plays_the_same_episode_and_can_be_paused(app: PlayApp, methods: list[PolicyRunner]):
    slow = PlayApp(methods, seed=SEED, plan_timeout_s=0)
    with block_plans(methods[0].policy) as go:
        slow.tick()
        frame = slow.frame()
        assert (frame["last"], frame["panels"][0]["thinking"]) == (0, True)
        run(slow, Pause(True), 5)
        assert slow.frame()["last"] == 0
        run(slow, Pause(False))
        go.set()
        tick_until(slow, 20)
    assert slow.frame()["panels"][0]["trail"] == run(app, 20)["panels"][0]["trail"]


def test_a_plan_from_before_a_reset_is_dropped(app: PlayApp, methods: list[PolicyRunner]):
    slow = PlayApp(methods, seed=5, plan_timeout_s=0)
    slow.tick()
    run(slow, Reset(SEED))
    tick_until(slow, 9)
    assert slow.frame()["panels"][0]["trail"] == run(app, 9)["panels"][0]["trail"]


def test_block_can_be_dragged_while_a_policy_is_planning(methods: list[PolicyRunner]):
    slow = PlayApp(methods, seed=SEED, plan_timeout_s=0)
    frame = run(slow, Drag(0, "block", 400.0, 130.0, 0.3), 1)
    assert frame["last"] == 1
    assert frame["panels"][0]["trail"][-1][2:4] == pytest.approx([400, 130], abs=0.5)


@pytest.mark.slow
def test_choosing_a_slow_method_repeatedly_queues_one_plan_per_panel(
    monkeypatch: pytest.MonkeyPatch,
):
    before = threading.active_count()
    (slow,) = load_runners([SHIPPED_POLICY])
    begun, go, plan = threading.Semaphore(0), threading.Semaphore(0), slow.policy.plan

    def waiting(*args: Any, **options: Any) -> Any:
        begun.release()
        assert go.acquire(timeout=30)
        return plan(*args, **options)

    monkeypatch.setattr(slow.policy, "plan", waiting)
    app = PlayApp([slow], seed=SEED, plan_timeout_s=0)
    for chosen in (("shipped",), ("shipped", "shipped")) * 20:
        run(app, SelectMethods(chosen), 2)
    assert begun.acquire(timeout=30)
    assert threading.active_count() == before + 1
    for _ in range(3):  # the first one, which was cancelled while running, and one for each table
        go.release()
    while app.frame()["last"] < 1:
        app.tick()
    assert len(slow.plan_s) == 2
    assert [begun.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    assert app.close(30)


def test_planning_continues_after_a_failed_plan(methods: list[PolicyRunner], monkeypatch: pytest.MonkeyPatch):
    app = PlayApp(methods, seed=SEED, plan_timeout_s=60)
    with monkeypatch.context() as broken:
        broken.setattr(methods[0].policy, "plan", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            app.tick()
    assert run(app, 3)["last"] == 3


def test_latency_covers_only_plans_with_the_current_controls(app: PlayApp):
    assert run(app, 3)["panels"][0]["latency"]["actions"] == 8
    for name in ("alpha", "diffusion", "chunk"):
        assert run(app, SetControl(name, 2.0))["panels"][0]["latency"] is None
        assert app.state()["latency"]["shipped"] is None
        assert run(app, 1)["panels"][0]["latency"]
    assert run(app, SetControl("speed", 2.0))["panels"][0]["latency"]["actions"] == 2


@pytest.mark.parametrize(
    ("runs", "called"),
    [
        (["/a/x", "/b/y"], ["x", "y"]),
        (["/a/run", "/b/run", "/b/z"], ["a/run", "b/run", "z"]),
        (["/p/a/run", "/q/a/run", "/q/b/run"], ["p/a/run", "q/a/run", "b/run"]),
        (["/a/x", "/a/x", "/b/x (2)", "/a/x"], ["x", "x (2)", "x (2) (2)", "x (3)"]),
        ([SHIPPED_POLICY, "/a/shipped", SHIPPED_POLICY], ["shipped", "a/shipped", "shipped (2)"]),
        (["/run", "/a/run"], ["run", "a/run"]),
    ],
)
def test_runs_get_distinct_names(runs: list[Path | str], called: list[str]):
    assert make_distinct_names([Path(run) for run in runs]) == called


def test_runs_with_equal_folder_names_and_methods_get_distinct_titles(tmp_path: Path):
    runs = [tmp_path / "a/run", tmp_path / "b/run"]
    for run_ in runs:
        shutil.copytree(SHIPPED_POLICY, run_)
    methods = PlayApp(load_runners(runs), seed=SEED).hello["methods"]
    assert [(m["name"], m["title"]) for m in methods] == [
        ("a/run", "Neural SDE, a/run"),
        ("b/run", "Neural SDE, b/run"),
    ]


@pytest.mark.slow
def test_extreme_controls_give_valid_frames(app: PlayApp):
    for name, value in {"alpha": 3, "diffusion": 4, "chunk": 32, "paths": 64, "drift_field": 1}.items():
        app.handle(SetControl(name, float(value)))
    for _ in range(12):  # across the start of the second plan
        run_events(app, 3)
        encode_message(app.frame())


def test_a_policy_with_nan_weights_raises_and_its_panel_stays(methods: list[PolicyRunner]):
    (broken,) = load_runners([SHIPPED_POLICY])
    with torch.no_grad():
        for weights in broken.policy.model.parameters():
            weights.fill_(torch.nan)
    app = PlayApp([broken, methods[1]], seed=SEED, plan_timeout_s=60)
    app.handle(SelectMethods(("shipped", "neighbours")))
    for _ in range(3):
        with pytest.raises(PlanError, match="Neural SDE planned actions that are not finite"):
            app.tick()
    frame = run(app, Scrub(5), Pause(False))
    assert (frame["last"], frame["panels"][0]["fan"]) == (0, None)
    encode_message(frame)
