"""Tests of policies with cameras behind a server: frames on the wire, bombs, limits and sessions."""

import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nsde_policy.core.spec import CameraSpec
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import (
    Array,
    EncodeReply,
    EncodeRequest,
    Refusal,
    decode,
    encode,
    pack_frame,
    unpack_frame,
)
from nsde_policy.errors import RemoteError
from nsde_policy.policy.policy import Policy
from tests.helpers.exported_policies import build_camera_policy, observe_robot
from tests.helpers.policy_servers import (
    SPEC,
    LinearPlanner,
    RunningServer,
    serve_in_thread,
)

CAMERA = CameraSpec("observation.images.top", 32, 32)
RAW = bytes(32 * 32 * 3)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return build_camera_policy("top", "wrist", anchors=2)


@pytest.fixture(scope="module")
def running(policy: Policy) -> Iterator[RunningServer]:
    with serve_in_thread(policy, longest_plan=4) as running:
        yield running


@pytest.fixture
def remote(running: RunningServer) -> Iterator[RemotePolicy]:
    with RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as connected:
        yield connected


def test_frames_survive_the_wire_exactly():
    rng = np.random.default_rng(0)
    for frame in (rng.integers(0, 256, CAMERA.shape, dtype=np.uint8), np.full(CAMERA.shape, 255, np.uint8)):
        packed = pack_frame(frame)
        assert np.array_equal(unpack_frame(packed, CAMERA), frame)
        assert len(packed) < 1.01 * frame.size
    smooth = np.add.outer(np.arange(32), np.arange(32))[..., None] + np.arange(3)
    assert len(pack_frame(smooth.astype(np.uint8))) < 0.1 * smooth.size


def test_codes_and_plans_are_those_of_the_policy(policy: Policy, remote: RemotePolicy):
    rows = [observe_robot(policy, seed) for seed in range(3)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    assert np.array_equal(remote.encode(rows[0]), policy.encode(rows[0]))
    assert remote.encode(batch) == pytest.approx(policy.encode(batch), abs=1e-5)
    for each in (policy, remote):
        each.reset(seed=0)
    for seed in range(9):
        given = observe_robot(policy, seed)
        assert remote.select_action(given) == pytest.approx(policy.select_action(given), abs=1e-4)


def make_request(frames: tuple[bytes, ...] | None = None, **changes: Any) -> EncodeRequest:
    wrist = zlib.compress(bytes(24 * 40 * 3))
    values: dict[str, Any] = {"values": Array.pack(np.full((1, 2), 0.5)), "deadline_s": 5.0, **changes}
    return EncodeRequest(frames=frames or (zlib.compress(RAW), wrist), **values)


BAD_FRAMES = {
    "bomb": (zlib.compress(bytes(1_000_000)), r"must have 3072 bytes, \(32, 32, 3\) uint8, got more"),
    "too short": (zlib.compress(RAW[:-1]), "must have 3072 bytes.* got 3071"),
    "truncated": (zlib.compress(RAW)[:-1], "must have 3072 bytes"),
    "not compressed": (RAW, "damaged or not compressed with zlib"),
    "more behind it": (zlib.compress(RAW) + b"more", "must have 3072 bytes"),
}


def test_bad_frames_are_refused_and_the_connection_stays_open(running: RunningServer):
    with running.connect_and_greet() as connection:

        def ask(**changes: Any) -> EncodeReply | Refusal:
            connection.send(encode(make_request(**changes)))
            return decode(connection.recv(timeout=10), EncodeReply | Refusal)

        for data, message in BAD_FRAMES.values():
            reply = ask(frames=(data, make_request().frames[1]))
            with pytest.raises(RemoteError, match=f"^{CAMERA.name} .*{message}"):
                unpack_frame(data, CAMERA)
            assert reply.code == "bad_request"
            assert reply.message.startswith(CAMERA.name)
        reply = ask(frames=(zlib.compress(RAW),))
        assert "got values of shape (1, 2) and 1 frames" in reply.message
        reply = ask(values=Array.pack(np.zeros((1, 3))))
        assert "got values of shape (1, 3) and 2 frames" in reply.message
        assert ask().features.shape == (1, 8)


def test_bomb_takes_no_memory():
    data = zlib.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(RemoteError):
            unpack_frame(data, CAMERA)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300_000


class SlowCamera(LinearPlanner):
    """A planner with a camera whose encoder waits."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = replace(SPEC, image_features=1, cameras=(CAMERA,), encoder="keypoints")
        self.go_on = threading.Event()

    def encode_frames(self, values: np.ndarray, frames: Any) -> tuple[np.ndarray, None]:
        assert self.go_on.wait(10)
        return np.full((len(values), 1), 0.25), None


def test_client_waits_for_codes_no_longer_than_twice_its_deadline():
    planner = SlowCamera()
    observed = {"observation.state": np.zeros(2), CAMERA.name: np.zeros(CAMERA.shape, np.uint8)}
    with (
        serve_in_thread(planner) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=600) as policy,
    ):
        policy._deadline_s = 0.05
        with pytest.raises(RemoteError):
            policy.encode(observed)
        policy._deadline_s = 5
        planner.go_on.set()
        assert policy.encode(observed).tolist() == [0.0, 0.0, 0.25]
