"""A made-up arm of seven joints with two cameras of different sizes: from training to serving."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.control import Session, SessionConfig
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.inference.base import BasePolicy
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory
from tests.helpers.camera_robot import (
    EPISODES,
    JOINTS,
    SIZES,
    STATE,
    STEPS,
    TOP,
    WRIST,
    make_arrays,
    write_camera_store,
)
from tests.helpers.numpy_planner import Sim
from tests.helpers.policy_servers import serve_in_thread

ARRAYS = make_arrays(arm=True)
FLAGS = {
    "images": tuple(SIZES),
    "preset": "fast",
    "device": "cpu",
    "encoder.train.steps": 3,
    "encoder.train.batch-size": 4,
    "encoder.size": 32,
    "encoder.width": 8,
    "encoder.keypoints": 2,
    "encoder.anchors": 0,
    "train.steps": 8,
    "train.batch-size": 16,
    "model.network.width": 16,
    "model.network.depth": 1,
    "chunk": 1,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_camera_store(tmp_path_factory.mktemp("arm") / "arm.zarr", arm=True)


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    flags = []
    for name, value in FLAGS.items():
        flags += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    assert main(["train", "--demos", str(store), "--out", str(out), *flags]) == 0
    return out


@pytest.fixture(scope="module")
def policy(run: Path) -> Policy:
    return Policy.from_pretrained(run)


@pytest.fixture(scope="module")
def graph(run: Path, tmp_path_factory: pytest.TempPathFactory) -> RuntimePolicy:
    out = tmp_path_factory.mktemp("graph") / "arm.onnx"
    assert main(["export", str(run), "--out", str(out), "--cases", "4"]) == 0
    return RuntimePolicy.load(out)


@pytest.fixture(scope="module")
def server(policy: Policy) -> Iterator[RemotePolicy]:
    """A client of a server with the policy."""
    with (
        serve_in_thread(policy, calibration=policy.calibration) as running,
        RemotePolicy.connect(running.url, deadline_s=30, timeout_s=60) as remote,
    ):
        yield remote


def observe(frame: int) -> dict[str, np.ndarray]:
    return {STATE: ARRAYS["state"][frame], TOP: ARRAYS["top"][frame], WRIST: ARRAYS["wrist"][frame]}


def test_arm_is_trained_on_joints_and_both_cameras(run: Path, policy: Policy):
    assert [(camera.name, camera.shape) for camera in policy.spec.cameras] == [
        (TOP, (32, 32, 3)),
        (WRIST, (24, 40, 3)),
    ]
    features = 2 * 2 * len(SIZES)
    assert (policy.spec.plain_dim, policy.spec.image_features, policy.spec.act_dim) == (
        JOINTS,
        features,
        JOINTS,
    )
    assert policy.spec.first_action_from == tuple(range(JOINTS)), "actions are positions of the joints"
    assert policy.calibration.rate_hz == 10.0
    assert [seen.camera for seen in policy.calibration.frames] == [TOP, WRIST]
    for folder in (run, run / ENCODER_FOLDER):
        assert all(np.isfinite(list(row.values())).all() for row in RunDirectory(folder).read_metrics())


@pytest.mark.parametrize("kind", ["graph", "server"])
def test_graph_and_server_encode_and_plan_as_the_policy(
    kind: str, policy: Policy, request: pytest.FixtureRequest
):
    other: RuntimePolicy | RemotePolicy = request.getfixturevalue(kind)
    for frame in (0, 17, EPISODES * STEPS - 1):
        obs = observe(frame)
        assert other.encode(obs) == pytest.approx(policy.encode(obs), abs=1e-4)
    assert other.calibration == policy.calibration
    assert other.predict_action_chunk(observe(0)).shape == (policy.chunk, JOINTS)


@pytest.mark.parametrize("kind", ["policy", "graph", "server"])
def test_arm_is_controlled_in_a_session(kind: str, request: pytest.FixtureRequest):
    planner: BasePolicy = request.getfixturevalue(kind)
    sim, commands = Sim(), []
    with Session(
        planner, SessionConfig(freeze_gc=False), calibration=planner.calibration, clock=sim.clock
    ) as session:
        for frame in range(STEPS):
            commands.append(session.step(observe(frame)))
            sim.now += 0.1
        assert session.report().faults == {}
        assert session.last is not None
        assert session.last.source == "plan"
        session.step({**observe(STEPS), WRIST: np.zeros((24, 40, 3), np.uint8)})
        (fault,) = session.last.faults
    assert (fault.kind.value, fault.camera) == ("implausible_frame", WRIST)
    assert np.shape(commands) == (STEPS, JOINTS)
    low, high = session.resolved.limits.low, session.resolved.limits.high
    assert ((low <= commands) & (commands <= high)).all()
    assert np.ptp(commands, axis=0).min() > 0
