"""Tests for nsde_policy/viewer/play_app.py, lane.py and forecast.py: policies on tables, without a server."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.errors import EnvInputError, PlanError, ProtocolError
from nsde_policy.eval.rollout import Player, RolloutConfig, Trace
from nsde_policy.inference.policy import Policy
from nsde_policy.viewer.launch import names, performers
from nsde_policy.viewer.messages import (
    Aim,
    Choose,
    Command,
    Hold,
    Pause,
    Release,
    Reset,
    Scrub,
    Set,
    Step,
    encode,
)
from nsde_policy.viewer.play_app import REST, Play
from nsde_policy.viewer.policy_runner import Performer
from tests.helpers.viewer_servers import SEED, act, two_methods


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> list[Performer]:
    return two_methods(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def stage(methods: list[Performer]) -> Play:
    return Play(methods, seed=SEED, patience_s=60)


def run(stage: Play, *events: Command | int) -> dict[str, Any]:
    """Commands, and numbers of ticks in between; returns the last frame."""
    act(stage, *events)
    return stage.frame()


def test_an_untouched_seed_is_the_episode_that_eval_scores(stage: Play):
    trace = Trace()
    result = Player(SHIPPED_POLICY, RolloutConfig()).play(SEED, trace)
    frame = run(stage, 1000)
    assert result.success
    assert frame["lanes"][0]["solved"]
    assert frame["last"] == result.steps
    assert frame["lanes"][0]["solved_s"] == result.steps / 10
    assert run(stage, Scrub(result.steps - 1))["lanes"][0]["solved_s"] is None
    assert stage.state()["coverage"][0] == [round(c, 3) for c in trace.progress]


def test_who_goes_back_and_plays_on_sees_the_same_again(stage: Play):
    before = run(stage, 45)
    covered = stage.state()["coverage"]
    again = run(stage, Scrub(21), Pause(False), 24)
    assert again["last"] == before["last"]
    assert again["lanes"][0]["trail"] == before["lanes"][0]["trail"]
    assert stage.state()["coverage"] == covered
    assert again["epoch"] > before["epoch"], "pages must not blend the two pasts"


def test_looking_back_stops_time_and_changes_nothing(stage: Play):
    before = run(stage, 30)
    looked = run(stage, Scrub(10), 5)
    assert (looked["at"], looked["last"], looked["paused"]) == (10, 30, True)
    assert run(stage, Scrub(10**9))["lanes"][0]["trail"][-1] == before["lanes"][0]["trail"][-1]
    assert run(stage, Scrub(-5))["at"] == 0


def test_pause_stands_still_and_a_step_is_one_period(stage: Play):
    assert run(stage, 5, Pause(True), 7)["last"] == 5
    frame = run(stage, Step(), 7)
    assert (frame["last"], frame["paused"]) == (6, True)
    assert run(stage, Pause(False), 3)["last"] == 9


def test_a_reset_starts_from_the_seed_however_often(stage: Play):
    first = run(stage, Reset(42), 8)["lanes"][0]["trail"]
    assert run(stage, 20, Reset(42), 8)["lanes"][0]["trail"] == first
    assert stage.state()["seed"] == 42


def test_a_hand_carries_the_block_away_and_the_policy_brings_it_back(stage: Play):
    assert run(stage, 400)["lanes"][0]["solved"]
    x, y, angle = run(stage)["lanes"][0]["trail"][-1][2:]
    away = Hold(0, "block", x + 90, y - 60, angle)
    frame = run(stage, away, Release(), 1)
    assert frame["lanes"][0]["coverage"] < 0.6
    assert frame["lanes"][0]["trail"][-1][2:4] == pytest.approx([x + 90, y - 60], abs=0.02)
    run(stage, 500)
    assert max(stage.state()["coverage"][0][frame["last"] :]) > 0.9


def test_a_hand_on_the_agent_leads_it_and_lets_go(stage: Play):
    held = run(stage, 10, Hold(0, "agent", 30.0, 480.0), 25)["lanes"][0]
    assert held["trail"][-1][:2] == pytest.approx([30, 480], abs=2)
    assert held["target"] == [30, 480]
    freed = run(stage, Release(), 2)["lanes"][0]
    assert freed["target"] != [30, 480]


def test_while_time_stands_still_a_hand_moves_the_block_and_the_policy_waits(stage: Play):
    before = run(stage, 12, Pause(True), 3)["lanes"][0]["trail"][-1]
    after = run(stage, Hold(0, "block", 380.0, 120.0, 1.0), 12, Release(), 2)
    x, y = after["lanes"][0]["trail"][-1][2:4]
    assert (x, y) == pytest.approx((380, 120), abs=0.5)
    assert np.hypot(*np.subtract(after["lanes"][0]["trail"][-1][:2], before[:2])) < 60
    assert after["paused"]
    assert run(stage, 5)["last"] == after["last"]


def test_side_by_side_start_alike_and_a_hand_moves_both_or_one(stage: Play):
    frame = run(stage, Choose(("shipped", "neighbours")))
    assert frame["lanes"][0]["trail"] == frame["lanes"][1]["trail"]
    both = run(stage, 3, Hold(1, "block", 200.0, 380.0, 0.5), 2, Release(), 1)
    assert both["lanes"][0]["trail"][0][2:4] == pytest.approx([200, 380], abs=8)
    assert both["lanes"][1]["trail"][0][2:4] == pytest.approx([200, 380], abs=8)
    one = run(stage, Set("together", 0), Hold(1, "block", 380.0, 120.0, 0.5), 2, Release(), 1)
    assert np.hypot(*np.subtract(one["lanes"][0]["trail"][0][2:4], [380, 120])) > 100
    assert {"shipped", "neighbours"} == {name for name, ms in stage.state()["latency"].items() if ms}


def test_only_a_neural_sde_has_a_fan_and_a_drift(stage: Play):
    frame = run(stage, Choose(("shipped", "neighbours")), Set("paths", 7), Set("field", 1), 2)
    sde, neighbours = frame["lanes"]
    assert len(sde["fan"]["paths"]) == len(sde["fan"]["sigma"]) == 7
    assert sde["fan"]["paths"][0][:2] == pytest.approx(sde["trail"][-1][:2], abs=0.1)
    assert len(sde["field"]) > 20
    assert neighbours["fan"] is None
    assert neighbours["field"] is None
    assert neighbours["plan"]
    encode(frame)


def test_the_strength_of_the_diffusion_is_the_width_of_the_fan(stage: Play):
    def width(strength: float) -> float:
        frame = run(stage, Set("diffusion", strength))
        return float(np.std(np.array(frame["lanes"][0]["fan"]["paths"])[:, -2:], axis=0).sum())

    def sigma(strength: float) -> float:
        return float(np.mean(run(stage, Set("diffusion", strength))["lanes"][0]["fan"]["sigma"]))

    run(stage, 10, Pause(True))
    assert width(0) < 1e-9
    assert width(0.5) < width(2)
    assert sigma(2) == pytest.approx(2 * sigma(1), rel=0.15)


def test_a_shorter_chunk_is_a_plan_that_ends_sooner(stage: Play):
    assert run(stage, Set("chunk", 3), 1)["lanes"][0]["latency"]["actions"] == 3
    assert len(run(stage)["lanes"][0]["plan"]) == 2
    assert len(run(stage, Set("chunk", 12), 1)["lanes"][0]["plan"]) == 11


def test_after_a_success_the_next_seed_follows_only_where_wanted(stage: Play):
    rested = run(stage, 400, REST)
    assert run(stage, 10 * REST)["last"] == rested["last"]
    run(stage, Set("onward", 1), REST)
    assert stage.state()["seed"] == SEED + 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (Choose(("shipped", "nobody")), "shipped, neighbours"),
        (Hold(1, "block", 1.0, 1.0), "number 1"),
        (Set("alpha", 1e9), "alpha lies from 0 to 3"),
        (Aim(1.0, 2.0), "nsde-policy collect"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(stage: Play, command: Command, said: str):
    before, told = run(stage, 4), stage.revision
    with pytest.raises((ProtocolError, EnvInputError), match=said):
        stage.handle(command)
    assert stage.frame()["lanes"] == before["lanes"]
    assert stage.revision == told


@contextmanager
def held(policy: Policy) -> Iterator[threading.Event]:
    """A policy that plans when it is let go, and not before."""
    go, plan = threading.Event(), policy.plan

    def waiting(*args: Any, **options: Any) -> Any:
        assert go.wait(30)
        return plan(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(policy, "plan", waiting)
        yield go


def test_a_method_that_takes_its_time_plays_the_same_episode_and_can_be_paused_meanwhile(
    stage: Play, methods: list[Performer]
):
    slow = Play(methods, seed=SEED, patience_s=0)
    with held(methods[0].policy) as go:
        slow.tick()
        frame = slow.frame()
        assert (frame["last"], frame["lanes"][0]["thinking"]) == (0, True)
        run(slow, Pause(True), 5)
        assert slow.frame()["last"] == 0
        run(slow, Pause(False))
        go.set()
        while slow.frame()["last"] < 20:
            slow.tick()
    assert slow.frame()["lanes"][0]["trail"] == run(stage, 20)["lanes"][0]["trail"]


def test_a_plan_for_a_world_that_is_no_more_is_not_followed(stage: Play, methods: list[Performer]):
    slow = Play(methods, seed=5, patience_s=0)
    slow.tick()
    run(slow, Reset(SEED))
    while slow.frame()["last"] < 9:
        slow.tick()
    assert slow.frame()["lanes"][0]["trail"] == run(stage, 9)["lanes"][0]["trail"]


def test_a_hand_is_obeyed_while_a_method_thinks(methods: list[Performer]):
    slow = Play(methods, seed=SEED, patience_s=0)
    frame = run(slow, Hold(0, "block", 400.0, 130.0, 0.3), 1)
    assert frame["last"] == 1
    assert frame["lanes"][0]["trail"][-1][2:4] == pytest.approx([400, 130], abs=0.5)


def test_however_often_a_slow_method_is_chosen_one_plan_is_being_made_and_one_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
):
    before = threading.active_count()
    (slow,) = performers([SHIPPED_POLICY])
    begun, go, plan = threading.Semaphore(0), threading.Semaphore(0), slow.policy.plan

    def waiting(*args: Any, **options: Any) -> Any:
        begun.release()
        assert go.acquire(timeout=30)
        return plan(*args, **options)

    monkeypatch.setattr(slow.policy, "plan", waiting)
    stage = Play([slow], seed=SEED, patience_s=0)
    for chosen in (("shipped",), ("shipped", "shipped")) * 20:
        run(stage, Choose(chosen), 2)
    assert begun.acquire(timeout=30)
    assert threading.active_count() == before + 1
    for _ in range(3):  # the one that was begun first and is not wanted any more, and one for each table
        go.release()
    while stage.frame()["last"] < 1:
        stage.tick()
    assert len(slow.plan_s) == 2
    assert [begun.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    assert stage.close(30)


def test_a_plan_that_fails_is_not_the_last_one(methods: list[Performer], monkeypatch: pytest.MonkeyPatch):
    stage = Play(methods, seed=SEED, patience_s=60)
    with monkeypatch.context() as broken:
        broken.setattr(methods[0].policy, "plan", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stage.tick()
    assert run(stage, 3)["last"] == 3


def test_how_long_a_plan_takes_is_told_of_plans_with_the_controls_as_they_are(stage: Play):
    assert run(stage, 3)["lanes"][0]["latency"]["actions"] == 8
    for name in ("alpha", "diffusion", "chunk"):
        assert run(stage, Set(name, 2.0))["lanes"][0]["latency"] is None
        assert stage.state()["latency"]["shipped"] is None
        assert run(stage, 1)["lanes"][0]["latency"]
    assert run(stage, Set("speed", 2.0))["lanes"][0]["latency"]["actions"] == 2


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
def test_runs_have_names_that_tell_them_apart(runs: list[Path | str], called: list[str]):
    assert names([Path(run) for run in runs]) == called


def test_of_runs_with_one_name_and_one_method_none_is_lost(tmp_path: Path):
    runs = [tmp_path / "a/run", tmp_path / "b/run"]
    for run_ in runs:
        shutil.copytree(SHIPPED_POLICY, run_)
    methods = Play(performers(runs), seed=SEED).hello["methods"]
    assert [(m["name"], m["title"]) for m in methods] == [
        ("a/run", "Neural SDE, a/run"),
        ("b/run", "Neural SDE, b/run"),
    ]


def test_the_wildest_settings_still_make_a_frame(stage: Play):
    for name, value in {"alpha": 3, "diffusion": 4, "chunk": 32, "paths": 64, "field": 1}.items():
        stage.handle(Set(name, float(value)))
    for _ in range(60):
        stage.tick()
        encode(stage.frame())


def test_a_policy_that_has_lost_its_mind_stands_still_beside_one_that_waits(methods: list[Performer]):
    (broken,) = performers([SHIPPED_POLICY])
    with torch.no_grad():
        for weights in broken.policy.model.parameters():
            weights.fill_(torch.nan)
    stage = Play([broken, methods[1]], seed=SEED, patience_s=60)
    stage.handle(Choose(("shipped", "neighbours")))
    for _ in range(3):
        with pytest.raises(PlanError, match="Neural SDE planned something that is not finite"):
            stage.tick()
    frame = run(stage, Scrub(5), Pause(False))
    assert (frame["last"], frame["lanes"][0]["fan"]) == (0, None)
    encode(frame)
