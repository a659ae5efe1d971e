"""Tests for deploy/client.py: the same plans as the local policy, and a typed error for every failure."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_in_threads

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import (
    Array,
    EncodeReply,
    EncodeRequest,
    PlanReply,
    PlanRequest,
    Refusal,
    decode,
    encode,
)
from nsde_policy.errors import (
    ConfigError,
    PolicyInputError,
    RemoteError,
)
from nsde_policy.interface.calibration import MAX_FEATURES, Calibration
from nsde_policy.interface.planner import Plan
from tests.helpers.policy_servers import (
    SPEC,
    STATES,
    WELCOME,
    LinearPlanner,
    RunningServer,
    assert_server_works,
    serve_in_thread,
)

OBS = np.array([0.1, 0.2, 0.3])
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with serve_in_thread(LinearPlanner()) as running:
        yield running


@pytest.fixture
def policy(running: RunningServer) -> Iterator[RemotePolicy]:
    with RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as connected:
        yield connected


def test_plan_beyond_the_limit_of_the_server_is_refused(policy: RemotePolicy):
    with pytest.raises(RemoteError, match="from 1 to 128 actions, got 200"):
        policy.plan_from(STATES, steps=200, seed=0)
    with pytest.raises(PolicyInputError, match="need steps >= 1"):
        policy.plan_from(STATES, steps=0, seed=0)
    assert policy.plan_from(STATES, steps=2, seed=0).actions.shape == (2, 2)


def test_wrong_token_and_one_client_too_many_are_refused():
    with serve_in_thread(LinearPlanner(), token=TOKEN, max_clients=1) as running:
        for token in (None, "wrong-horse-battery"):
            with pytest.raises(RemoteError, match="the token is missing or wrong"):
                RemotePolicy.connect(running.url, token=token)
        with RemotePolicy.connect(running.url, token=TOKEN), pytest.raises(RemoteError) as refused:
            RemotePolicy.connect(running.url, token=TOKEN)
        assert "the maximum number of clients" in str(refused.value)
        assert refused.value.reason == "refused"
        running.wait_for("disconnected")
        assert_server_works(running, token=TOKEN)


@pytest.mark.parametrize("token", ["secret\nsecret-secret", "secret secret", "sécret"])
def test_a_token_that_fits_no_header_is_refused_and_not_repeated(token):
    with pytest.raises(ConfigError, match="the token has blanks") as caught:
        RemotePolicy.connect("ws://127.0.0.1:1", token=token)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options", "error", "message"),
    [
        *((url, {}, ConfigError, "is not an address like ws://") for url in ("127.0.0.1:8765", "ws://", "")),
        ("ws://127.0.0.1:1", {"deadline_s": 3, "timeout_s": 1}, ConfigError, "need 0 < deadline_s <="),
        ("ws://127.0.0.1:1", {}, RemoteError, "cannot connect to"),
    ],
)
def test_unusable_address_is_an_error(
    url: str, options: dict[str, Any], error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        RemotePolicy.connect(url, **options)


def test_client_reconnects_after_a_server_restart():
    with serve_in_thread(LinearPlanner()) as running:
        policy = RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10)
        policy.reset(seed=3)
        actions = [policy.select_action(OBS) for _ in range(6)]
    with pytest.raises(RemoteError) as caught:
        policy.plan_from(STATES, steps=4, seed=0)
    assert caught.value.reason == "connection"
    with serve_in_thread(LinearPlanner(), port=running.port):
        actions += [policy.select_action(OBS) for _ in range(6)]
        policy.reset(seed=3)
        assert np.array_equal(actions, [policy.select_action(OBS) for _ in range(12)])
    other = LinearPlanner()
    other.spec = replace(SPEC, method="knn")
    with serve_in_thread(other, port=running.port):
        with pytest.raises(RemoteError, match="now serves a different policy"):
            policy.plan_from(STATES, steps=4, seed=0)
        assert other.seeds == []
    policy.close()


def test_closed_policy_does_not_reconnect(running: RunningServer):
    with RemotePolicy.connect(running.url) as policy:
        policy.select_action(OBS)
    before = len(running.find_events(" connected from"))
    with pytest.raises(RemoteError, match="was closed by this client; connect again"):
        policy.plan_from(STATES, steps=4, seed=0)
    policy.close()  # closing twice is allowed
    assert len(running.find_events(" connected from")) == before


# Servers that send wrong replies.

Reply = Callable[[PlanRequest], bytes | str | None]


@contextmanager
def serve_replies(reply: Reply = lambda request: None, welcome: bytes | str | None = None) -> Iterator[str]:
    """Run a server with its own greeting and replies; None sends nothing."""

    def handle(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(encode(WELCOME) if welcome is None else welcome)
        for data in connection:
            answer = reply(decode(data, PlanRequest | EncodeRequest))
            if answer is not None:
                connection.send(answer)

    with serve_in_threads(handle, "127.0.0.1", 0, close_timeout=0.2) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


WRONG_REPLIES: dict[str, tuple[Reply, str, str]] = {
    "silence": (lambda r: None, "timeout", "sent no reply in time"),
    "noise": (lambda r: b"\xc1", "protocol", "malformed"),
    "too few actions": (lambda r: planned(np.zeros((3, 2))), "protocol", "actions have shape"),
    "wrong states": (lambda r: planned(states=np.zeros((4, 5))), "protocol", "states have shape"),
    "nan": (lambda r: planned().replace(bytes(8), b"\xff" * 8), "protocol", "finite"),
    "a welcome": (lambda r: encode(WELCOME), "protocol", "Invalid value 'welcome'"),
    "a flood": (lambda r: b"\x00" * 10_000_000, "connection", "lost the connection"),
    "late": (lambda r: encode(Refusal("late", "too slow")), "timeout", "too slow"),
    "failed": (lambda r: encode(Refusal("failed", "broken")), "failed", "broken"),
    "bad request": (lambda r: encode(Refusal("bad_request", "no")), "refused", "no .bad_request"),
}


def planned(actions: np.ndarray | None = None, states: np.ndarray | None = None) -> bytes:
    return encode(PlanReply.pack(Plan(np.zeros((4, 2)) if actions is None else actions, states)))


@pytest.mark.parametrize("name", WRONG_REPLIES)
def test_wrong_reply_raises_a_typed_error(name: str):
    reply, reason, message = WRONG_REPLIES[name]
    with serve_replies(reply) as url:
        policy = RemotePolicy.connect(url, deadline_s=0.2, timeout_s=10)
        policy._timeout_s = 0.3 if name == "silence" else 10  # a busy machine may need longer to connect
        with pytest.raises(RemoteError, match=message) as caught:
            policy.plan_from(STATES, steps=4, seed=0)
        assert caught.value.reason == reason
        policy.close()


def test_features_of_another_shape_raise_a_typed_error():
    with serve_replies(lambda _: encode(EncodeReply(Array.pack(np.zeros((2, 1)))))) as url:
        policy = RemotePolicy.connect(url, deadline_s=5, timeout_s=10)
        with pytest.raises(RemoteError, match=r"features of shape \(2, 1\), expected \(1, 1\)"):
            policy.encode_frames(np.zeros((1, policy.spec.obs_dim - 1)), [])
        policy.close()


@pytest.mark.parametrize(
    ("welcome", "message"),
    [
        (b"", "truncated"),
        ("hello", "bytes"),
        (encode(msgspec.structs.replace(WELCOME, spec="{}")), "greeting is not valid"),
        (encode(Refusal("wrong_version", "no")), "wrong_version"),
    ],
)
def test_invalid_greeting_is_an_error(welcome: Any, message: str):
    with serve_replies(welcome=welcome) as url, pytest.raises(RemoteError, match=message):
        RemotePolicy.connect(url)


def test_the_greeting_of_a_policy_with_many_observations_is_read():
    columns = MAX_FEATURES - SPEC.act_dim
    sizes = {"low": (-1.0,) * 512, "high": (1.0,) * 512, "increment_std": (0.1,) * 512}
    spec = replace(SPEC, obs_dim=columns, **sizes)
    states = np.random.default_rng(0).uniform(-1, 1, (600, 512))
    calibration = Calibration.measure(spec, states, states[:, columns:], [600], rate_hz=10.0)
    planner = LinearPlanner()
    planner.spec = spec
    with (
        serve_in_thread(planner, calibration=calibration) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as policy,
    ):
        assert policy.calibration == calibration


def test_late_reply_is_not_taken_for_that_of_the_next_request():
    def slow(request: PlanRequest) -> bytes:
        time.sleep(0.4 if request.seed == 99 else 0.0)
        return planned(actions=np.full((4, 2), float(request.seed)))

    with serve_replies(slow) as url:
        policy = RemotePolicy.connect(url, deadline_s=0.2, timeout_s=10)
        policy._timeout_s = 0.2
        with pytest.raises(RemoteError):
            policy.plan_from(STATES, steps=4, seed=99)
        time.sleep(0.4)
        policy._timeout_s = 10
        assert (policy.plan_from(STATES, steps=4, seed=5).actions == 5.0).all()
        policy.close()
