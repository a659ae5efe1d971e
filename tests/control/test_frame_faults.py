"""Tests for control/inputs.py, with an arm of seven joints and two cameras: bad frames are faults."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.control import Session, SessionConfig
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.errors import PolicyInputError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import Plan, Planner
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig, RunConfig
from tests.helpers.camera_robot import (
    JOINTS,
    SIZES,
    STATE,
    TOP,
    WRIST,
    make_arrays,
    train_camera_run,
    write_camera_store,
)
from tests.helpers.numpy_planner import Sim

ARRAYS = make_arrays(arm=True)
CONFIG = RunConfig(
    demos=DemoConfig(images=tuple(SIZES), encoder="keypoints"),
    encoder=KeypointConfig(
        train=TrainConfig(steps=2, batch_size=4, log_every=1), size=32, keypoints=2, width=8, anchors=1
    ),
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
    train=TrainConfig(steps=5, batch_size=16, log_every=5),
)
Observation = dict[str, Any]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("arm")
    store = write_camera_store(folder / "store.zarr", arm=True)
    train_camera_run(store, folder / "run", CONFIG)
    return Policy.from_pretrained(folder / "run")


def observe(frame: int) -> Observation:
    return {STATE: ARRAYS["state"][frame], TOP: ARRAYS["top"][frame], WRIST: ARRAYS["wrist"][frame]}


class Robot:
    """A session in simulated time at 10 Hz, and what it is given."""

    def __init__(self, session: Session, sim: Sim) -> None:
        self.session, self._sim, self.frame = session, sim, -1

    def step(
        self, obs: Observation | None = None, *, t: Any = None, after: float = 0.1
    ) -> list[tuple[str, str | None]]:
        """Ask for the next command; return the kinds of its faults with their cameras."""
        self._sim.now += after
        self.frame += 1
        command = self.session.step(observe(self.frame % len(ARRAYS["state"])) if obs is None else obs, t)
        assert np.isfinite(command).all()
        return [(fault.kind.value, fault.camera) for fault in self.session.last.faults]

    @property
    def now(self) -> float:
        return self._sim.now


@contextmanager
def run_robot(policy: Planner, **settings: Any) -> Iterator[Robot]:
    sim, calibration = Sim(), settings.pop("calibration", None) or policy.calibration
    worker = settings.pop("worker", None)
    config = SessionConfig(**{"rate_hz": 10.0, "freeze_gc": False, **settings})
    with Session(policy, config, calibration=calibration, clock=sim.clock, worker=worker) as session:
        yield Robot(session, sim)


def change(name: str, value: Any) -> Callable[[Observation], Observation]:
    """Make a function that replaces one part of an observation, or computes it from that part."""
    return lambda obs: {**obs, name: value(obs[name]) if callable(value) else value}


def paint(name: str, colour: int) -> Callable[[Observation], Observation]:
    return change(name, lambda frame: np.full_like(frame, colour))


def draw_noise(frame: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, frame.shape).astype(np.uint8)


BAD: dict[str, tuple[Callable[[Observation], Observation], str, str]] = {
    "missing": (lambda obs: {k: v for k, v in obs.items() if k != WRIST}, "missing_frame", WRIST),
    "colours first": (change(TOP, lambda f: f.transpose(2, 0, 1)), "wrong_frame", TOP),
    "grey": (change(TOP, lambda f: f[..., 0]), "wrong_frame", TOP),
    "of the other camera": (lambda obs: {**obs, WRIST: obs[TOP]}, "wrong_frame", WRIST),
    "tensor of floats": (change(TOP, lambda f: torch.from_numpy(f.copy()).float()), "wrong_frame", TOP),
    "black": (paint(TOP, 0), "implausible_frame", TOP),
    "white": (paint(WRIST, 255), "implausible_frame", WRIST),
    "noise": (change(TOP, draw_noise), "implausible_frame", TOP),
}


@pytest.fixture(scope="module")
def robot(policy: Policy) -> Iterator[Robot]:
    """One session for many frames, which has had one good observation."""
    with run_robot(policy) as robot:
        assert not robot.step()
        yield robot


@pytest.mark.parametrize("kind", BAD)
def test_bad_frame_is_a_fault_that_names_its_camera(kind: str, robot: Robot, policy: Policy):
    spoil, fault, camera = BAD[kind]
    assert robot.step(spoil(observe(2))) == [(fault, camera)]
    assert robot.session.last.faults[0].detail.startswith(f"{camera} ")
    assert robot.session.last.source == "hold"
    assert not robot.step(), "the next good frame is used again"
    with pytest.raises(PolicyInputError, match=camera):
        policy.select_action(spoil(observe(2)))


GOOD: dict[str, Callable[[Observation], Observation]] = {
    "part of a larger picture": change(TOP, lambda f: np.pad(f, ((2, 3), (5, 1), (0, 0)))[2:-3, 5:-1]),
    "read-only": change(TOP, lambda f: np.frombuffer(f.tobytes(), np.uint8).reshape(f.shape)),
    "tensor": change(WRIST, lambda f: torch.from_numpy(f.copy())),
    "10 % darker": change(TOP, lambda f: (0.9 * f).astype(np.uint8)),
    "some noise": change(TOP, lambda f: (0.9 * f + 0.1 * draw_noise(f)).astype(np.uint8)),
}


@pytest.mark.parametrize("kind", GOOD)
def test_good_frame_is_accepted_and_encoded(kind: str, robot: Robot, policy: Policy):
    obs = GOOD[kind](observe(2))
    assert not robot.step(obs)
    assert not robot.step()
    policy.reset()
    assert policy.select_action(obs).shape == (JOINTS,)
    if not kind.startswith(("10 %", "some")):
        assert policy.encode(obs) == pytest.approx(policy.encode(observe(2)), abs=1e-6)


def test_frame_that_stays_the_same_while_the_robot_moves_is_frozen(policy: Policy):
    with run_robot(policy) as robot:
        buffer = observe(0)[WRIST].copy()
        found = [robot.step({**observe(frame), WRIST: buffer}) for frame in range(6)]
        assert found == [[]] * 4 + [[("frozen_frame", WRIST)]] * 2, "after more than 3 policy periods"
        assert f"{WRIST} has not changed for 0.5 s, but obs[" in robot.session.last.faults[0].detail
        buffer[:] = observe(6)[WRIST]  # a driver that reuses its memory
        assert not robot.step({**observe(6), WRIST: buffer})


def test_frame_of_a_robot_that_rests_may_stay_the_same(policy: Policy):
    rest = observe(5)
    trembling = np.array([seen.still for seen in policy.calibration.frames]).max(0) / 2
    with run_robot(policy) as robot:
        found = [robot.step({**rest, STATE: rest[STATE] + trembling * (-1) ** k}) for k in range(20)]
    assert found == [[]] * 20
    with run_robot(policy) as robot:  # a reset forgets frames: the world may have been set up again
        for frame in range(3):
            robot.step({**observe(frame), TOP: observe(0)[TOP]})
        robot.session.reset()
        assert [robot.step({**observe(frame), TOP: observe(0)[TOP]}) for frame in range(3, 6)] == [[]] * 3


def test_frame_with_its_own_time_stamp_is_stale(policy: Policy):
    with run_robot(policy) as robot:
        assert not robot.step(t={STATE: robot.now + 0.1, TOP: robot.now, WRIST: robot.now + 0.1})
        times = {TOP: robot.now + 0.1, WRIST: robot.now - 0.1}
        assert robot.step(t=times) == [("stale_frame", WRIST)]
        assert robot.step(t={TOP: robot.now + 9.0}) == [("clock_jump", TOP)]
        assert robot.step(t={TOP: np.nan}) == [("clock_jump", TOP)]
        kinds = [kind for kind, _ in robot.step(t={STATE: robot.now - 0.3})]
        assert kinds == ["reordered_observation", "stale_observation"]
        assert not robot.step(t={})
        assert robot.step(t={"top": robot.now}) == [("wrong_observation", None)]
        assert f"'top'; the names are {STATE}, {TOP}, {WRIST}" in robot.session.last.faults[0].detail


class Encoder(Planner):
    """A planner whose encoder records what it is given, and may be blocked."""

    def __init__(self, policy: Policy) -> None:
        self.spec, self._policy = policy.spec, policy
        self.encoded: list[tuple[np.ndarray, list[np.ndarray]]] = []
        self.released = threading.Event()
        self.released.set()

    def encode_frames(self, values: np.ndarray, frames: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        assert self.released.wait(60)
        self.encoded.append((values[0], [frame[0] for frame in frames]))
        return self._policy.encode_frames(values, frames)

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        return self._policy.plan_from(states, steps=steps, seed=seed)


def test_frames_of_a_plan_are_encoded_by_the_planners_thread_and_others_only_checked(policy: Policy):
    planner = Encoder(policy)
    with run_robot(planner, calibration=policy.calibration, rate_hz=50.0, chunk=3) as robot:
        for _ in range(20):
            assert not robot.step(after=0.02)
        frames = [planner.encoded[k][1][0] for k in range(2)]
        assert (frames == ARRAYS["top"][[0, 15]]).all(), "a plan in period 0, and one in period 3"
        assert robot.step(paint(TOP, 0)(observe(20)), after=0.004) == [("implausible_frame", TOP)]


@pytest.mark.parametrize("ahead", [False, True])
def test_encoder_that_hangs_does_not_block_the_loop(ahead: bool, policy: Policy):
    planner, obs = Encoder(policy), {name: value.copy() for name, value in observe(0).items()}
    planner.released.clear()
    config = SessionConfig(plan_ahead=ahead, deadline_s=50 if ahead else 0.01, freeze_gc=False)
    with Session(planner, config, calibration=policy.calibration) as session:
        session.step(obs)
        assert not planner.encoded, "the step came back before the encoder"
        assert ("late_plan" in session.report().faults) == (not ahead)
        for value in obs.values():
            value[:] = 0  # the driver of a camera may write the next frame into the same memory
        planner.released.set()
        session._scheduler.pending[1].result(60)
    values, frames = planner.encoded[0]
    assert (frames[0] == ARRAYS["top"][0]).all()
    assert (values == ARRAYS["state"][0]).all()


def test_encoder_that_returns_nan_is_a_fault_and_refused(policy: Policy):
    broken = copy.deepcopy(policy)
    broken.reset()
    for weights in broken.encoder.parameters():
        weights.data *= 1e30
    with pytest.raises(PolicyInputError, match=r"the encoder returned features .* train it again"):
        broken.select_action(observe(0))
    with run_robot(broken) as robot:
        assert robot.step() == [("planner_error", None)]
        assert "the encoder returned features" in robot.session.last.faults[0].detail


def test_encoded_frames_are_scored_with_their_plan(policy: Policy):
    planner = Encoder(policy)
    planner.encode_frames = lambda values, frames: (9 + policy.encode_frames(values, frames)[0], None)
    with run_robot(planner, calibration=policy.calibration, fault_when_ood=True) as robot:
        assert robot.step() == [("out_of_distribution", None)]
        assert robot.session.last.is_ood
    with run_robot(policy, fault_when_ood=True) as robot:
        assert robot.step(observe(3)) == []
        assert 0 < robot.session.last.ood < policy.calibration.threshold


def test_visible_fraction_is_reported_with_each_command_and_may_be_a_fault(policy: Policy):
    with run_robot(policy) as robot:
        assert not robot.step()
        visible, report = robot.session.last.visible, robot.session.report()
        assert 0 < visible <= 1
        assert report.least_visible == visible
        assert f"visible: at least {visible:.0%}" in report.to_text()
        robot.step(paint(TOP, 0)(observe(1)))
        assert robot.session.last.visible is None
    assert 0 < policy.calibration.usually_visible <= 1
    with run_robot(policy, min_visible=0.5 * (1 + visible)) as robot:
        assert robot.step() == [("hidden_scene", None)]
        assert "is visible, at least" in robot.session.last.faults[0].detail
        assert robot.session.last.source == "hold"


def test_calibration_without_frames_is_read_and_detects_only_wrong_ones(policy: Policy):
    older = {k: v for k, v in policy.calibration.to_dict().items() if k != "frames"}
    calibration = Calibration.from_dict(older)
    with run_robot(policy, calibration=calibration) as robot:
        robot.step()
        assert not robot.step(paint(TOP, 0)(observe(1)))
        assert robot.step({**observe(2), TOP: None}) == [("missing_frame", TOP)]
