"""Tests for nsde_policy/viewer/play_app.py, policy_runner.py and forecast.py, without a server."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.errors import EnvError, PlanError, RemoteError
from nsde_policy.eval.rollouts.disturbances import Condition
from nsde_policy.eval.rollouts.runner import EnvRunner, RolloutConfig
from nsde_policy.interface.planner import Plan
from nsde_policy.methods.neural_sde.config import SamplingConfig
from nsde_policy.selection.selector import PlanSelector
from nsde_policy.tasks import get_task
from nsde_policy.viewer.forecast import describe_candidates, sample_paths
from nsde_policy.viewer.messages import (
    ClientMessage,
    Drag,
    MoveAgent,
    Pause,
    Release,
    Reset,
    SelectMethods,
    SetControl,
    encode_message,
)
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import PolicyRunner, load_runners
from tests.helpers.selecting_runs import make_selecting_run, train_tiny
from tests.helpers.viewer_servers import SEED, run_events

BOTH = SelectMethods(("shipped", "neighbours"))


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
    result = EnvRunner(SHIPPED_POLICY, RolloutConfig()).run_one(SEED)
    frame = run(app, 1000)
    assert result.success
    assert frame["panels"][0]["solved"]
    assert frame["last"] == frame["panels"][0]["solved_at"] == result.steps
    assert app.state()["progress"][0] == [round(c, 3) for c in result.trace.progress]


def test_pause_stops_time(app: PlayApp):
    assert run(app, 5, Pause(True), 7)["last"] == 5
    assert run(app, Pause(False), 3)["last"] == 8


def test_block_can_be_dragged_while_paused(app: PlayApp):
    before = run(app, 12, Pause(True), 3)["panels"][0]["trail"][-1]
    after = run(app, Drag("block", 380.0, 120.0, 1.0), 12, Release(), 2)
    x, y = after["panels"][0]["trail"][-1][2:4]
    assert (x, y) == pytest.approx((380, 120), abs=0.5)
    assert np.hypot(*np.subtract(after["panels"][0]["trail"][-1][:2], before[:2])) < 60
    assert after["paused"]
    assert run(app, 5)["last"] == after["last"]


def test_two_panels_start_in_the_same_state_and_a_drag_moves_both_blocks(app: PlayApp):
    frame = run(app, BOTH)
    assert frame["panels"][0]["trail"] == frame["panels"][1]["trail"]
    dragged = run(app, 3, Drag("block", 200.0, 380.0, 0.5), 2, Release(), 1)
    for panel in dragged["panels"]:
        assert panel["trail"][0][2:4] == pytest.approx([200, 380], abs=8)
        assert panel["latency"]["ms"] > 0


def test_only_a_neural_sde_has_sampled_paths(app: PlayApp):
    frame = run(app, BOTH, SetControl("paths", 7), 2)
    sde, neighbours = frame["panels"]
    assert len(sde["fan"]["paths"]) == len(sde["fan"]["sigma"]) == 7
    assert sde["fan"]["paths"][0][:2] == pytest.approx(sde["trail"][-1][:2], abs=0.1)
    assert neighbours["fan"] is None
    assert neighbours["plan"]
    encode_message(frame)


def test_policy_that_selects_plans_plays_as_in_eval_and_shows_what_it_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (runner,) = load_runners([make_selecting_run(tmp_path / "run")])
    app = PlayApp([runner], seed=SEED, plan_timeout_s=60)
    periods = 40
    result = EnvRunner(tmp_path / "run", RolloutConfig(env_kwargs={"max_episode_steps": periods})).run_one(
        SEED
    )
    panels = [run(app, SetControl("paths", 0), 1)["panels"][0] for _ in range(periods)]
    assert app.state()["progress"][0] == [round(c, 3) for c in result.trace.progress]
    assert {len(panel["compared"]) for panel in panels} == {0, 16}
    monkeypatch.setattr(PlanSelector, "judge", None)  # sampled paths are not selected
    for _, history in result.trace.histories:
        assert sample_paths(runner.policy, history, runner.policy.sampling, 1)


def test_chosen_plan_comes_first(app: PlayApp):
    states = np.random.default_rng(0).uniform(100, 400, (16, 9, 7))
    paths = describe_candidates(Plan(states[5, 1:, 5:], candidates=states), get_task("pusht").live_table())
    assert paths[0] == np.rint(states[5, :, :2]).ravel().tolist()
    assert sorted(paths) == sorted(np.rint(states[:, :, :2]).reshape(16, -1).tolist())
    assert run(app, BOTH, 1)["panels"][1]["compared"] is None, "this policy does not select plans"


def test_controls_of_a_plan_replan_and_restart_its_timing(app: PlayApp):
    assert run(app, SetControl("chunk", 3), 1)["panels"][0]["latency"]["actions"] == 3
    assert len(run(app)["panels"][0]["plan"]) == 2
    assert len(run(app, SetControl("chunk", 12), 1)["panels"][0]["plan"]) == 11
    for name in ("alpha", "diffusion", "chunk"):
        assert run(app, SetControl(name, 2.0))["panels"][0]["latency"] is None
        assert run(app, 1)["panels"][0]["latency"]
    assert run(app, SetControl("speed", 2.0))["panels"][0]["latency"]["actions"] == 2


def test_noise_and_delay_are_those_of_eval(app: PlayApp):
    condition = Condition(latency_steps=3, obs_noise=1.0)
    result = EnvRunner(SHIPPED_POLICY, RolloutConfig(condition=condition)).run_one(SEED)
    run(app, BOTH, SetControl("latency_steps", 3), SetControl("obs_noise", 1), Reset(SEED), 300)
    first, _ = app.state()["progress"]
    assert first[: result.steps + 1] == [round(c, 3) for c in result.trace.progress]


def test_a_method_that_fails_stops_at_the_time_limit(methods: list[PolicyRunner]):
    app = PlayApp([methods[1]], seed=SEED, plan_timeout_s=60)
    rested = run(app, 320)
    assert max(app.state()["progress"][0]) < 0.95
    assert (rested["last"], rested["panels"][0]["ended"], rested["panels"][0]["failed"]) == (300, True, False)
    x, y, angle = rested["panels"][0]["trail"][-1][2:]
    assert run(app, Drag("block", x, y, angle), Release(), 50)["last"] == 350, "it begins again after a drag"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (SelectMethods(("shipped", "unknown")), "shipped, neighbours"),
        (SetControl("alpha", 1e9), "alpha must be from 0 to 3"),
        (SetControl("gravity", 1), "unknown control 'gravity'; expected one of"),
        (MoveAgent(1.0, 2.0), "nsde-policy collect"),
    ],
)
def test_a_rejected_message_changes_nothing(app: PlayApp, message: ClientMessage, expected: str):
    before, revision = run(app, 4), app.revision
    with pytest.raises((RemoteError, EnvError), match=expected):
        app.handle(message)
    assert app.frame()["panels"] == before["panels"]
    assert app.revision == revision


def test_a_slow_planner_can_be_paused_and_reset_and_plays_the_same_episode(
    app: PlayApp, methods: list[PolicyRunner], monkeypatch: pytest.MonkeyPatch
):
    slow = PlayApp(methods, seed=5, plan_timeout_s=0)
    go, plan = threading.Event(), methods[0].policy.plan
    monkeypatch.setattr(methods[0].policy, "plan", lambda *args, **kw: go.wait(30) and plan(*args, **kw))
    slow.tick()
    frame = run(slow, Pause(True), 5, Pause(False))
    assert (frame["last"], frame["panels"][0]["thinking"]) == (0, True)
    dragged = run(slow, Drag("block", 400.0, 130.0, 0.3), 1)
    assert dragged["last"] == 1, "a user need not wait for the plan"
    assert dragged["panels"][0]["trail"][-1][2:4] == pytest.approx([400, 130], abs=0.5)
    run(slow, Reset(SEED))
    go.set()
    tick_until(slow, 20)
    assert slow.frame()["panels"][0]["trail"] == run(app, 20)["panels"][0]["trail"]


def test_runs_are_loaded_once_under_distinct_names_and_titles(tmp_path: Path):
    runs = [tmp_path / "a/run", tmp_path / "b/run"]
    for each in runs:
        shutil.copytree(SHIPPED_POLICY, each)
    (alone,) = load_runners([runs[0], runs[0]])
    assert (alone.name, alone.title) == ("run", "Neural SDE")
    named = PlayApp(load_runners([*runs, SHIPPED_POLICY]), seed=SEED).hello["methods"]
    assert [each["name"] for each in named] == [*map(str, runs), "shipped"]
    assert [each["title"] for each in named] == [f"Neural SDE, {each['name']}" for each in named]


def test_alpha_is_offered_only_for_a_trained_denoiser_and_changes_no_other_policy(
    tmp_path: Path, methods: list[PolicyRunner]
):
    without = {"denoiser": False, "noise": 0.0, "sampling": SamplingConfig(alpha=0.0)}
    (plain,) = load_runners([train_tiny(tmp_path / "plain", model=without).path])
    app = PlayApp([plain, *methods], seed=SEED, plan_timeout_s=60)
    assert [method["denoiser"] for method in app.hello["methods"]] == [False, True, False]
    assert run(app, SetControl("alpha", 2.0), SetControl("diffusion", 0.5), 1)["panels"][0]["latency"]
    sampling = app._controls.sampling_for(plain.policy)
    assert sampling == SamplingConfig(alpha=0.0, diffusion=0.5)
    assert app._controls.sampling_for(methods[0].policy).alpha == 2.0


def test_a_policy_with_nan_weights_raises_and_its_panel_stays(methods: list[PolicyRunner]):
    (broken,) = load_runners([SHIPPED_POLICY])
    with torch.no_grad():
        for weights in broken.policy.model.parameters():
            weights.fill_(torch.nan)
    app = PlayApp([broken, methods[1]], seed=SEED, plan_timeout_s=60)
    app.handle(BOTH)
    for _ in range(3):
        with pytest.raises(PlanError, match="Neural SDE: planned actions are not finite"):
            app.tick()
    frame = run(app, Pause(False))
    assert (frame["last"], frame["panels"][0]["fan"]) == (0, None)
    encode_message(frame)


def test_a_plan_that_fails_is_made_again(app: PlayApp, methods: list[PolicyRunner], monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(methods[0].policy, "plan", lambda *args, **kw: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            app.tick()
    assert run(app, 3)["last"] == 3
