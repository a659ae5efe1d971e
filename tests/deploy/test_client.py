"""Tests for deploy/client.py: the same plans as the local policy, and a typed error for every failure."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_in_threads

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import PROTOCOL, PlanReply, PlanRequest, Refusal, Welcome, decode, encode
from nsde_policy.deploy.server.config import ServeSettings
from nsde_policy.deploy.server.server import PolicyServer
from nsde_policy.errors import (
    ConfigError,
    PolicyInputError,
    RemoteError,
)
from nsde_policy.planner.spec import Plan, Planner
from tests.helpers.policy_servers import (
    CALIBRATION,
    SPEC,
    STATES,
    LinearPlanner,
    RunningServer,
    serve_in_thread,
)

ROOT = Path(__file__).parents[2]
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


def test_remote_policy_is_a_planner_with_the_spec_of_the_server(policy: RemotePolicy):
    planner: Planner = policy
    assert planner.spec == replace(SPEC, longest_chunk=128), "the server's max_steps"
    assert (policy.obs_dim, policy.act_dim) == (3, 2)
    there, here = (
        policy.plan_from(STATES, steps=9, seed=4),
        LinearPlanner().plan_from(STATES, steps=9, seed=4),
    )
    assert there.actions.tobytes() == here.actions.tobytes()


def test_actions_are_reproducible_with_a_seed(policy: RemotePolicy):
    def actions(seed: int) -> np.ndarray:
        policy.reset(seed=seed)
        return np.array([policy.select_action(OBS) for _ in range(10)])

    assert np.array_equal(actions(4), actions(4))
    assert not np.array_equal(actions(4), actions(5))


def test_policy_executes_a_chunk_then_plans_from_its_history():
    planner = LinearPlanner()
    with (
        serve_in_thread(planner) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as policy,
    ):
        policy.reset(seed=1)
        actions = np.array([policy.select_action(OBS + 0.1 * k) for k in range(5)])
        memory, here = SPEC.new_history(), LinearPlanner()
        for k in range(5):
            memory.add_observation(OBS + 0.1 * k)
            if k in (0, 4):
                plan = here.plan_from(memory.states(), steps=4, seed=planner.seeds[k // 4]).actions
            assert np.array_equal(actions[k], plan[k % 4])
            memory.add_action(actions[k])
    assert len(planner.seeds) == 2


def test_predicted_chunk_is_reproducible_with_a_seed(policy: RemotePolicy):
    memory = SPEC.new_history()
    memory.add_observation(OBS)
    wanted = LinearPlanner().plan_from(memory.states(), steps=4, seed=8).actions
    assert np.array_equal(policy.predict_action_chunk(OBS, seed=8), wanted)
    assert policy.predict_action_chunk(OBS).shape == (4, 2)


@pytest.mark.parametrize(
    ("states", "options", "message"),
    [
        (np.zeros((2, 4)), {}, r"have shape \(2, 5\), got \(2, 4\)"),
        (np.full((2, 5), np.nan), {}, "finite"),
        (STATES, {"steps": 0}, "need steps >= 1"),
        (STATES, {"steps": 2.5}, "steps must be a whole number, got 2.5"),
        (STATES, {"seed": -1}, "seed must be between 0"),
        (STATES, {"seed": 2**63}, "seed must be between 0"),
        (STATES, {"seed": "a"}, "seed must be a whole number, got 'a'"),
    ],
)
def test_invalid_input_is_rejected_before_it_is_sent(
    policy: RemotePolicy, states: np.ndarray, options: dict[str, int], message: str
):
    with pytest.raises(PolicyInputError, match=message):
        policy.plan_from(states, **{"steps": 4, "seed": 0, **options})


def test_plan_beyond_the_limit_of_the_server_is_refused(policy: RemotePolicy):
    with pytest.raises(RemoteError, match="from 1 to 128 actions, got 200"):
        policy.plan_from(STATES, steps=200, seed=0)
    assert policy.plan_from(STATES, steps=2, seed=0).actions.shape == (2, 2)


def test_wrong_token_is_refused():
    with serve_in_thread(LinearPlanner(), token=TOKEN) as running:
        for token in (None, "wrong-horse-battery"):
            with pytest.raises(RemoteError, match="the token is missing or wrong"):
                RemotePolicy.connect(running.url, token=token)
        RemotePolicy.connect(running.url, token=TOKEN).close()


@pytest.mark.parametrize("token", ["secret\nsecret-secret", "secret secret", "sécret"])
def test_a_token_that_fits_no_header_is_refused_and_not_repeated(token):
    with pytest.raises(ConfigError, match="the token has blanks") as caught:
        RemotePolicy.connect("ws://127.0.0.1:1", token=token)
    assert "cret" not in str(caught.value)


def test_full_server_refuses_clients():
    with (
        serve_in_thread(LinearPlanner(), max_clients=1) as running,
        RemotePolicy.connect(running.url),
        pytest.raises(RemoteError, match="the maximum number of clients"),
    ):
        RemotePolicy.connect(running.url)


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "http://127.0.0.1:1", "ws://", ""])
def test_invalid_address_is_an_error(url: str):
    with pytest.raises(ConfigError, match="is not an address like ws://"):
        RemotePolicy.connect(url)


def test_deadline_must_not_exceed_the_timeout():
    with pytest.raises(ConfigError, match="need 0 < deadline_s <= timeout_s, got 3 and 1"):
        RemotePolicy.connect("ws://127.0.0.1:1", deadline_s=3, timeout_s=1)


def test_unreachable_server_is_a_connection_error():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(RemoteError, match="cannot connect to"):
        RemotePolicy.connect(f"ws://127.0.0.1:{port}")


def serve_once(planner: Planner, port: int) -> tuple[PolicyServer, threading.Thread, int]:
    """Start a server that can be restarted on the same port."""
    server, ready, found = (
        PolicyServer(planner, ServeSettings(port=port), lambda *_, **__: None),
        threading.Event(),
        [],
    )
    thread = threading.Thread(
        target=lambda: asyncio.run(server.run(lambda p: (found.append(p), ready.set())))
    )
    thread.start()
    assert ready.wait(10)
    return server, thread, found[0]


def test_client_reconnects_after_a_server_restart():
    server, thread, port = serve_once(LinearPlanner(), 0)
    policy = RemotePolicy.connect(f"ws://127.0.0.1:{port}", deadline_s=5, timeout_s=10)
    policy.reset(seed=3)
    actions = [policy.select_action(OBS) for _ in range(6)]
    server.stop()
    thread.join()
    with pytest.raises(RemoteError):
        policy.plan_from(STATES, steps=4, seed=0)
    server, thread, _ = serve_once(LinearPlanner(), port)
    actions += [policy.select_action(OBS) for _ in range(6)]
    policy.reset(seed=3)
    assert np.array_equal(actions, [policy.select_action(OBS) for _ in range(12)])
    policy.close()
    server.stop()
    thread.join()


def test_client_reconnects_within_a_call(running: RunningServer, policy: RemotePolicy):
    assert policy._connection is not None
    policy._connection.socket.shutdown(socket.SHUT_RDWR)
    wanted = LinearPlanner().plan_from(STATES, steps=4, seed=2).actions
    assert np.array_equal(policy.plan_from(STATES, steps=4, seed=2).actions, wanted)


def test_closed_policy_does_not_reconnect(running: RunningServer):
    with RemotePolicy.connect(running.url) as policy:
        policy.select_action(OBS)
    before = len(running.find_events("connected"))
    policy.reset()
    for ask in (
        lambda: policy.plan_from(STATES, steps=4, seed=0),
        lambda: policy.select_action(OBS),
    ):
        with pytest.raises(RemoteError, match="was closed by this client; connect again"):
            ask()
    policy.close()  # closing twice is allowed
    assert len(running.find_events("connected")) == before


def test_different_policy_after_a_restart_is_refused():
    server, thread, port = serve_once(LinearPlanner(), 0)
    policy = RemotePolicy.connect(f"ws://127.0.0.1:{port}")
    server.stop()
    thread.join()
    other = LinearPlanner()
    other.spec = replace(SPEC, method="knn")
    server, thread, _ = serve_once(other, port)
    with pytest.raises(RemoteError, match="now serves a different policy"):
        policy.plan_from(STATES, steps=4, seed=0)
    assert other.seeds == []
    server.stop()
    thread.join()


def test_threads_share_a_connection_and_get_their_own_plans(policy: RemotePolicy):
    wrong: list[int] = []

    def ask(seed: int) -> None:
        wanted = LinearPlanner().plan_from(STATES, steps=4, seed=seed).actions
        for _ in range(30):
            if not np.array_equal(policy.plan_from(STATES, steps=4, seed=seed).actions, wanted):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Servers that send wrong replies.

LIMITS: dict[str, Any] = {"version": "test", "max_message": 65_536, "max_steps": 128, "deadline_s": 1.0}
WELCOME = Welcome.build(SPEC, CALIBRATION, protocol=PROTOCOL, **LIMITS)
Reply = Callable[[PlanRequest], bytes | str | None]


@contextmanager
def serve_replies(reply: Reply = lambda request: None, welcome: bytes | str | None = None) -> Iterator[str]:
    """Run a server with its own greeting and replies; None sends nothing."""

    def handle(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(encode(WELCOME) if welcome is None else welcome)
        for data in connection:
            answer = reply(decode(data, PlanRequest))
            if answer is not None:
                connection.send(answer)

    with serve_in_threads(handle, "127.0.0.1", 0, close_timeout=0.2) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


WRONG_REPLIES: dict[str, tuple[Reply, type[Exception], str]] = {
    "silence": (lambda r: None, RemoteError, "sent no reply within 0.3 s"),
    "noise": (lambda r: b"\xc1", RemoteError, "malformed"),
    "text": (lambda r: "here you are", RemoteError, "bytes"),
    "another's plan": (lambda r: planned(r.id + 1), RemoteError, "request 1 got the reply to request 2"),
    "too few actions": (lambda r: planned(r.id, actions=np.zeros((3, 2))), RemoteError, "shape"),
    "wide actions": (lambda r: planned(r.id, actions=np.zeros((4, 3))), RemoteError, "shape"),
    "wrong states": (lambda r: planned(r.id, states=np.zeros((4, 5))), RemoteError, "shape"),
    "wrong std": (lambda r: planned(r.id, std=np.zeros((4, 5))), RemoteError, "shape"),
    "nan": (lambda r: planned(r.id).replace(bytes(8), b"\xff" * 8), RemoteError, "finite"),
    "a welcome": (lambda r: encode(WELCOME), RemoteError, "Invalid value 'welcome'"),
    "a flood": (lambda r: b"\x00" * 2_000_000, RemoteError, "lost the connection"),
    "late": (lambda r: encode(Refusal(r.id, "late", "too slow")), RemoteError, "too slow"),
}


def planned(
    number: int,
    actions: np.ndarray | None = None,
    states: np.ndarray | None = None,
    std: np.ndarray | None = None,
) -> bytes:
    return encode(PlanReply.pack(number, Plan(np.zeros((4, 2)) if actions is None else actions, states, std)))


@pytest.mark.parametrize("name", WRONG_REPLIES)
def test_wrong_reply_raises_a_typed_error(name: str):
    reply, error, message = WRONG_REPLIES[name]
    with serve_replies(reply) as url:
        policy = RemotePolicy.connect(url, deadline_s=0.2, timeout_s=10)
        policy._timeout_s = 0.3 if name == "silence" else 10  # a busy machine may need longer to connect
        with pytest.raises(error, match=message):
            policy.plan_from(STATES, steps=4, seed=0)
        policy.close()


@pytest.mark.parametrize(
    ("welcome", "error", "message"),
    [
        (b"", RemoteError, "truncated"),
        ("hello", RemoteError, "bytes"),
        (
            encode(Welcome.build(SPEC, CALIBRATION, protocol=9, **LIMITS)),
            RemoteError,
            f"has protocol 9, this client {PROTOCOL}",
        ),
        (
            encode(
                Welcome.build(
                    SPEC, replace(CALIBRATION, step=(1.0,), acceleration=(1.0,)), protocol=PROTOCOL, **LIMITS
                )
            ),
            RemoteError,
            "greeting is not valid",
        ),
        (encode(Refusal(None, "wrong_version", "no")), RemoteError, "wrong_version"),
    ],
)
def test_invalid_greeting_is_an_error(welcome: Any, error: type[Exception], message: str):
    with serve_replies(welcome=welcome) as url, pytest.raises(error, match=message):
        RemotePolicy.connect(url)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n"])
def test_another_kind_of_server_is_an_error_within_the_timeout(said: bytes):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"ws://127.0.0.1:{sock.getsockname()[1]}"

        def speak() -> None:
            connection, _ = sock.accept()
            connection.sendall(said)
            time.sleep(0.5)
            connection.close()

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(RemoteError, match=r"cannot connect to|HTTP status 200"):
            RemotePolicy.connect(url, deadline_s=0.3, timeout_s=0.3)
        thread.join()


def test_late_reply_is_not_taken_for_that_of_the_next_request():
    def slow(request: PlanRequest) -> bytes:
        time.sleep(0.4 if request.seed == 99 else 0.0)
        return planned(request.id, actions=np.full((4, 2), float(request.seed)))

    with serve_replies(slow) as url:
        policy = RemotePolicy.connect(url, deadline_s=0.2, timeout_s=10)
        policy._timeout_s = 0.2
        with pytest.raises(RemoteError):
            policy.plan_from(STATES, steps=4, seed=99)
        time.sleep(0.4)
        policy._timeout_s = 10
        assert (policy.plan_from(STATES, steps=4, seed=5).actions == 5.0).all()
        policy.close()


def test_client_imports_no_torch():
    code = (
        "import sys\n"
        "class Ban:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'gymnasium', 'zarr', 'pygame', 'pymunk', 'diffusers',\n"
        "                'safetensors', 'tyro', 'tqdm'}:\n"
        "            raise ImportError(f'{name} is not on this robot')\n"
        "sys.meta_path.insert(0, Ban())\n"
        "import nsde_policy.deploy.client\n"
        "ours = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(m for m in ours if not m.startswith('_')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = set(eval(done.stdout))
    assert {"numpy", "websockets", "msgspec", "nsde_policy"} <= found
    assert not found & {"torch", "safetensors", "tyro"}
