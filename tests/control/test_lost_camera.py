"""Tests of policies that were trained with --images-dropout: a session goes on without one of two cameras."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data.types import Demonstrations
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.errors import PolicyInputError, SessionStoppedError
from nsde_policy.interface.calibration import CameraRange
from nsde_policy.interface.planner import Planner
from nsde_policy.policy.base_policy import BasePolicy
from nsde_policy.policy.policy import Policy
from nsde_policy.training.dataset import TrainingSet
from tests.control.test_frame_faults import (
    CONFIG,
    Observation,
    Robot,
    change,
    observe,
    paint,
    run_robot,
)
from tests.helpers.camera_robot import SIZES, STATE, TOP, WRIST, train_camera_run, write_camera_store
from tests.helpers.policy_servers import serve_in_thread
from tests.helpers.simulated_time import InlineWorker

DROPPED = CONFIG.replace_parts(demos={"images_dropout": 0.5})
FEATURES = slice(7, 11)  # of the camera TOP, after seven joints; those of WRIST follow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_camera_store(tmp_path_factory.mktemp("arm") / "store.zarr", arm=True)


@pytest.fixture(scope="module")
def policy(store: Path) -> Policy:
    train_camera_run(store, store.parent / "run", DROPPED)
    return Policy.from_pretrained(store.parent / "run")


def without(*names: str) -> Callable[[Observation], Observation]:
    return lambda obs: {name: value for name, value in obs.items() if name not in names}


def assert_goes_on(robot: Robot, spoil: Callable[[Observation], Observation], steps: int = 5) -> None:
    """Step with spoilt observations; every command must follow a plan within the limits."""
    limits = robot.session.resolved.limits
    for _ in range(steps):
        before = robot.session.last.action
        assert not robot.step(spoil(observe((robot.frame + 1) % 72)))
        last = robot.session.last
        assert last.source == "plan"
        assert (last.action >= limits.low - 1e-9).all()
        assert (last.action <= limits.high + 1e-9).all()
        assert (np.abs(last.action - before) <= limits.speed / 10 + 1e-9).all()


LOST: dict[str, tuple[Callable[[Observation], Observation], str]] = {
    "None": (change(WRIST, None), "missing_frame"),
    "black": (paint(WRIST, 0), "implausible_frame"),
}


@pytest.mark.parametrize("kind", LOST)
@pytest.mark.parametrize("plan_ahead", [False, True])
def test_commands_go_on_without_a_camera_and_the_report_says_so(kind: str, plan_ahead: bool, policy: Policy):
    spoil, reason = LOST[kind]
    with run_robot(policy, plan_ahead=plan_ahead, worker=InlineWorker()) as robot:
        robot.step()
        assert_goes_on(robot, lambda obs: obs)
        assert_goes_on(robot, spoil)
        assert [(fault.camera, fault.kind) for fault in robot.session.last.lost] == [(WRIST, reason)]
        lost = robot.session.report()
        assert_goes_on(robot, lambda obs: obs, 2)
        found = robot.session.report()
    assert f"{WRIST}: 5 commands without it" in lost.to_text()
    assert not lost.faults
    assert (found.lost_cameras, found.held) == ({WRIST: 5}, 0)


@pytest.mark.parametrize(
    ("hold", "ages", "lost"),
    [(1.0, (0.05, 0.05, 0.05, 0.15, 0.25, 0.35), 2), (3.0, (0.0, 0.34, 0.36), 1)],
    ids=["usual", "slow"],
)
def test_frame_older_than_the_period_of_its_camera_is_a_lost_camera(
    hold: float, ages: tuple[float, ...], lost: int, policy: Policy
):
    frames = tuple(replace(seen, hold=hold) for seen in policy.calibration.frames)
    with run_robot(policy, calibration=replace(policy.calibration, frames=frames)) as robot:
        for age in ages:
            now = robot.now + 0.1
            assert not robot.step(t={STATE: now, TOP: now, WRIST: now - age})
        assert [fault.kind for fault in robot.session.last.lost] == ["stale_frame"]
        assert robot.session.report().lost_cameras == {WRIST: lost}


def test_frozen_camera_is_lost_and_the_other_one_is_still_checked(policy: Policy):
    with run_robot(policy) as robot:
        found = [robot.step({**observe(frame), WRIST: observe(0)[WRIST]}) for frame in range(6)]
        assert found == [[]] * 6
        assert [fault.kind for fault in robot.session.last.lost] == ["frozen_frame"]
        spoilt = {**observe(6), WRIST: None, TOP: observe(6)[TOP][..., 0]}
        assert robot.step(spoilt) == [("wrong_frame", TOP)]
        assert not robot.session.last.lost


def test_two_lost_cameras_are_faults(policy: Policy):
    with run_robot(policy) as robot:
        robot.step()
        found = robot.step(without(TOP, WRIST)(observe(1)))
        assert found == [("missing_frame", TOP), ("missing_frame", WRIST)]
        assert robot.session.last.source == "hold"
    with pytest.raises(PolicyInputError, match=f"{TOP} is missing.*--images-dropout"):
        policy.encode(without(TOP, WRIST)(observe(1)))


def test_other_reactions_to_a_lost_camera_remain(policy: Policy):
    with run_robot(policy, on_fault={"missing_frame": "stop"}) as robot:
        robot.step()
        assert robot.step(without(WRIST)(observe(1))) == [("missing_frame", WRIST)]
        while not robot.session._limiter.at_rest:
            robot.step()
        with pytest.raises(SessionStoppedError, match="missing_frame"):
            robot.step()


def test_camera_that_is_lost_from_the_start_and_a_state_without_it_is_not_scored(policy: Policy):
    with run_robot(policy, fault_when_ood=True) as robot:
        assert not robot.step(without(TOP)(observe(0)))
        assert robot.session.last.ood is None
        robot.step()
        assert robot.session.last.ood is not None
        assert robot.session.report().lost_cameras == {TOP: 1}


def test_history_and_plans_restart_when_the_cameras_change(policy: Policy):
    """With a history of states, one with features and one without would be unlike any in training."""
    seen: list[np.ndarray] = []

    class Recorder(Planner):
        spec = policy.spec
        encode_frames = staticmethod(policy.encode_frames)

        def plan_from(
            self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None
        ) -> Any:
            seen.append(states)
            return policy.plan_from(states, steps=steps, seed=seed)

    with run_robot(Recorder(), calibration=policy.calibration, chunk=8) as robot:
        for frame in range(4):
            robot.step(observe(frame) if frame < 2 else without(TOP)(observe(frame)))
    assert len(seen) == 2, "at the start, and when the camera was lost"
    features = seen[1][:, FEATURES]
    np.testing.assert_array_equal(features[0], features[1])


def find_middle(policy: BasePolicy, columns: slice) -> np.ndarray:
    return (np.array(policy.spec.low[columns]) + np.array(policy.spec.high[columns])) / 2


def assert_loses_top(planner: BasePolicy, policy: Policy) -> None:
    """Compare what a planner encodes without a camera with the policy, and let it plan from that."""
    obs = observe(3)
    encoded = planner.encode({**obs, TOP: None})
    np.testing.assert_allclose(encoded[FEATURES], find_middle(policy, FEATURES), rtol=0, atol=1e-6)
    np.testing.assert_allclose(encoded[11:], policy.encode(obs)[11:], rtol=0, atol=1e-5)
    batch = {name: np.stack([obs[name]] * 2) for name in (STATE, WRIST)}
    np.testing.assert_allclose(planner.encode(batch), [encoded] * 2, rtol=0, atol=1e-5)
    planner.reset(seed=0)
    assert np.isfinite(planner.select_action(without(TOP)(obs))).all()
    with pytest.raises(PolicyInputError, match=f"{WRIST} is .*black"):
        planner.select_action(paint(WRIST, 0)(without(TOP)(obs)))


@pytest.mark.slow
def test_features_of_a_lost_camera_are_in_mid_range_also_in_a_graph_and_behind_a_server(
    policy: Policy, tmp_path: Path, onnx_operators: None
):
    assert_loses_top(policy, policy)
    export_policy(policy, tmp_path / "policy.onnx", cases=2)
    assert_loses_top(RuntimePolicy.load(tmp_path / "policy.onnx"), policy)
    with (
        serve_in_thread(policy, calibration=policy.calibration) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=9) as remote,
    ):
        assert_loses_top(remote, policy)
        with run_robot(remote, deadline_s=5.0) as robot:
            robot.step()
            assert_goes_on(robot, without(WRIST))


def test_dropped_copies_are_whole_episodes_with_the_wanted_share(policy: Policy):
    spec, settings, rng = policy.spec, DROPPED.demos, np.random.default_rng(0)
    ends = np.arange(1, 21) * 10
    demos = Demonstrations(rng.normal(size=(200, spec.obs_dim)), rng.normal(size=(200, 7)), ends)
    data = TrainingSet(demos, image_features=8)
    assert data.with_camera_dropout(CONFIG.demos, spec) is data
    first, second = (copy.demos for copy in data.with_camera_dropout(settings, spec).copies)
    assert len(first.obs) + len(second.obs) == len(demos.obs), "half of all data"
    for copy, columns in ((first, FEATURES), (second, slice(11, 15))):
        middle = find_middle(policy, columns)
        np.testing.assert_allclose(copy.obs[:, columns], np.tile(middle, (100, 1)), rtol=1e-6)
        others = np.delete(np.arange(15), columns)
        sources = {episode.obs[:, others].tobytes() for episode in demos}
        assert {episode.obs[:, others].tobytes() for episode in copy} < sources
    (copy, *_) = data.with_camera_dropout(replace(settings, images_dropout=0.75), spec).copies
    assert len(copy) == 30, "half of them twice"


def test_slow_camera_may_send_older_frames():
    repeats = np.arange(60) % 4 > 0
    looks, obs = np.full((60, 3), 50.0), np.linspace(0, 1, 60)[:, None]
    assert CameraRange.measure("top", looks, repeats, obs, [(0, 60)], ()).hold == 4
    assert CameraRange.measure("top", looks, np.zeros(60, bool), obs, [(0, 60)], ()).hold == 1


def test_dropout_needs_two_cameras(store: Path, capsys: pytest.CaptureFixture[str]):
    train = ["train", "--demos", str(store), "--images", next(iter(SIZES)), "--images-dropout", "0.3"]
    assert main([*train, "--out", str(store.parent / "none")]) == 2
    assert "--images-dropout is for two or more cameras" in capsys.readouterr().err
    assert not (store.parent / "none").exists()
