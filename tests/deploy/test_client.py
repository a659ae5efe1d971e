"""Tests for client.py: the policy there is the policy here, and whatever the other side does has a name."""

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
    ProtocolError,
    RemoteConnectionError,
    RemoteRefusedError,
    RemoteTimeoutError,
)
from nsde_policy.inference.spec import Planner
from tests.helpers.policy_servers import CALIBRATION, SPEC, STATES, LinearPlanner, Served, served

ROOT = Path(__file__).parents[2]
OBS = np.array([0.1, 0.2, 0.3])
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def house() -> Iterator[Served]:
    with served(LinearPlanner()) as running:
        yield running


@pytest.fixture
def policy(house: Served) -> Iterator[RemotePolicy]:
    with RemotePolicy.connect(house.url, deadline_s=5, timeout_s=10) as connected:
        yield connected


def test_it_is_a_planner_with_the_spec_of_the_policy_there(policy: RemotePolicy):
    planner: Planner = policy
    assert planner.spec == SPEC
    assert (policy.obs_dim, policy.act_dim) == (3, 2)
    there, here = (
        policy.plan_from(STATES, steps=9, seed=4),
        LinearPlanner().plan_from(STATES, steps=9, seed=4),
    )
    assert there.actions.tobytes() == here.actions.tobytes()


def test_one_seed_gives_one_sequence_of_actions(policy: RemotePolicy):
    def actions(seed: int) -> np.ndarray:
        policy.reset(seed=seed)
        return np.array([policy.select_action(OBS) for _ in range(10)])

    assert np.array_equal(actions(4), actions(4))
    assert not np.array_equal(actions(4), actions(5))


def test_a_chunk_is_executed_before_it_plans_again_from_what_was_seen_and_done():
    planner = LinearPlanner()
    with served(planner) as house, RemotePolicy.connect(house.url, deadline_s=5, timeout_s=10) as policy:
        policy.reset(seed=1)
        actions = np.array([policy.select_action(OBS + 0.1 * k) for k in range(5)])
        memory, here = SPEC.memory(), LinearPlanner()
        for k in range(5):
            memory.add_observation(OBS + 0.1 * k)
            if k in (0, 4):
                plan = here.plan_from(memory.states(), steps=4, seed=planner.seeds[k // 4]).actions
            assert np.array_equal(actions[k], plan[k % 4])
            memory.add_action(actions[k])
    assert len(planner.seeds) == 2


def test_a_chunk_from_one_observation_repeats_itself_with_its_seed(policy: RemotePolicy):
    memory = SPEC.memory()
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
        (STATES, {"seed": -1}, "a seed lies between 0"),
        (STATES, {"seed": 2**63}, "a seed lies between 0"),
        (STATES, {"seed": "a"}, "seed must be a whole number, got 'a'"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_it_is_sent(
    policy: RemotePolicy, states: np.ndarray, options: dict[str, int], message: str
):
    with pytest.raises(PolicyInputError, match=message):
        policy.plan_from(states, **{"steps": 4, "seed": 0, **options})


def test_a_plan_longer_than_the_server_makes_is_refused_by_name(policy: RemotePolicy):
    with pytest.raises(RemoteRefusedError, match="from 1 to 128 actions, got 200"):
        policy.plan_from(STATES, steps=200, seed=0)
    assert policy.plan_from(STATES, steps=2, seed=0).actions.shape == (2, 2)


def test_the_wrong_token_is_told_in_words():
    with served(LinearPlanner(), token=TOKEN) as house:
        for token in (None, "wrong-horse-battery"):
            with pytest.raises(RemoteRefusedError, match="it wants a token"):
                RemotePolicy.connect(house.url, token=token)
        RemotePolicy.connect(house.url, token=TOKEN).close()


def test_a_full_house_is_told_in_words():
    with (
        served(LinearPlanner(), max_clients=1) as house,
        RemotePolicy.connect(house.url),
        pytest.raises(RemoteRefusedError, match="as many clients as it lets in"),
    ):
        RemotePolicy.connect(house.url)


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "http://127.0.0.1:1", "ws://", ""])
def test_an_address_that_is_none_is_said(url: str):
    with pytest.raises(ConfigError, match="is no address like ws://"):
        RemotePolicy.connect(url)


def test_a_deadline_longer_than_the_timeout_is_refused():
    with pytest.raises(ConfigError, match="need 0 < deadline_s <= timeout_s, got 3 and 1"):
        RemotePolicy.connect("ws://127.0.0.1:1", deadline_s=3, timeout_s=1)


def test_nobody_there_is_a_lost_connection():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(RemoteConnectionError, match="cannot be reached"):
        RemotePolicy.connect(f"ws://127.0.0.1:{port}")


def serve_once(planner: Planner, port: int) -> tuple[PolicyServer, threading.Thread, int]:
    """A server that can be started again on the same port."""
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


def test_a_server_that_comes_back_is_found_again_and_nothing_is_lost():
    server, thread, port = serve_once(LinearPlanner(), 0)
    policy = RemotePolicy.connect(f"ws://127.0.0.1:{port}", deadline_s=5, timeout_s=10)
    policy.reset(seed=3)
    actions = [policy.select_action(OBS) for _ in range(6)]
    server.stop()
    thread.join()
    with pytest.raises(RemoteConnectionError):
        policy.plan_from(STATES, steps=4, seed=0)
    server, thread, _ = serve_once(LinearPlanner(), port)
    actions += [policy.select_action(OBS) for _ in range(6)]
    policy.reset(seed=3)
    assert np.array_equal(actions, [policy.select_action(OBS) for _ in range(12)])
    policy.close()
    server.stop()
    thread.join()


def test_a_connection_that_breaks_is_made_again_within_the_same_call(house: Served, policy: RemotePolicy):
    assert policy._line is not None
    policy._line.connection.socket.shutdown(socket.SHUT_RDWR)
    wanted = LinearPlanner().plan_from(STATES, steps=4, seed=2).actions
    assert np.array_equal(policy.plan_from(STATES, steps=4, seed=2).actions, wanted)


def test_a_policy_that_was_closed_does_not_connect_again(house: Served):
    with RemotePolicy.connect(house.url) as policy:
        policy.select_action(OBS)
    before = len(house.named("connected"))
    policy.reset()
    for ask in (
        lambda: policy.plan_from(STATES, steps=4, seed=0),
        lambda: policy.select_action(OBS),
    ):
        with pytest.raises(RemoteConnectionError, match="was closed here: connect anew"):
            ask()
    policy.close()  # a second time, which does no harm
    assert len(house.named("connected")) == before


def test_another_policy_at_the_same_address_is_not_asked():
    server, thread, port = serve_once(LinearPlanner(), 0)
    policy = RemotePolicy.connect(f"ws://127.0.0.1:{port}")
    server.stop()
    thread.join()
    other = LinearPlanner()
    other.spec = replace(SPEC, method="knn")
    server, thread, _ = serve_once(other, port)
    with pytest.raises(RemoteRefusedError, match="serves another policy than before"):
        policy.plan_from(STATES, steps=4, seed=0)
    assert other.seeds == []
    server.stop()
    thread.join()


def test_threads_take_turns_and_each_gets_its_own_answer(policy: RemotePolicy):
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


# Servers that lie.

WELCOME = Welcome(PROTOCOL, "test", SPEC, CALIBRATION, max_message=65_536, max_steps=128, deadline_s=1.0)
Reply = Callable[[PlanRequest], bytes | str | None]


@contextmanager
def liar(reply: Reply = lambda request: None, welcome: bytes | str | None = None) -> Iterator[str]:
    """A server of its own making: how it greets, and what it answers; None for silence."""

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


LIES: dict[str, tuple[Reply, type[Exception], str]] = {
    "silence": (lambda r: None, RemoteTimeoutError, "gave no answer within 0.3 s"),
    "noise": (lambda r: b"\xc1", ProtocolError, "not msgpack"),
    "text": (lambda r: "here you are", ProtocolError, "bytes"),
    "another's plan": (lambda r: planned(r.id + 1), ProtocolError, "asked 1, was answered 2"),
    "too few actions": (lambda r: planned(r.id, actions=np.zeros((3, 2))), ProtocolError, "shape"),
    "wide actions": (lambda r: planned(r.id, actions=np.zeros((4, 3))), ProtocolError, "shape"),
    "wrong states": (lambda r: planned(r.id, states=np.zeros((4, 5))), ProtocolError, "shape"),
    "wrong std": (lambda r: planned(r.id, std=np.zeros((4, 5))), ProtocolError, "shape"),
    "nan": (lambda r: planned(r.id, actions=np.full((4, 2), np.nan)), ProtocolError, "finite"),
    "a welcome": (lambda r: encode(WELCOME), ProtocolError, "expected a message of kind 'planned'"),
    "a flood": (lambda r: b"\x00" * 2_000_000, RemoteConnectionError, "is gone"),
    "late": (lambda r: encode(Refusal(r.id, "late", "too slow")), RemoteTimeoutError, "too slow"),
}


def planned(
    number: int,
    actions: np.ndarray | None = None,
    states: np.ndarray | None = None,
    std: np.ndarray | None = None,
) -> bytes:
    return encode(PlanReply(number, np.zeros((4, 2)) if actions is None else actions, states, std))


@pytest.mark.parametrize("name", LIES)
def test_a_server_that_lies_gives_a_typed_error_and_never_a_plan(name: str):
    reply, error, message = LIES[name]
    with liar(reply) as url:
        policy = RemotePolicy.connect(url, deadline_s=0.2, timeout_s=10)
        policy._timeout_s = 0.3 if name == "silence" else 10  # a busy machine may need longer to connect
        with pytest.raises(error, match=message):
            policy.plan_from(STATES, steps=4, seed=0)
        policy.close()


@pytest.mark.parametrize(
    ("welcome", "error", "message"),
    [
        (b"", ProtocolError, "not msgpack"),
        ("hello", ProtocolError, "bytes"),
        (encode(replace(WELCOME, protocol=9)), ProtocolError, f"speaks protocol 9, this client {PROTOCOL}"),
        (
            encode(replace(WELCOME, calibration=replace(CALIBRATION, step=(1.0,), acceleration=(1.0,)))),
            ProtocolError,
            "belongs to another run",
        ),
        (encode(Refusal(None, "wrong_version", "no")), RemoteRefusedError, "wrong_version"),
    ],
)
def test_a_greeting_that_is_none_is_refused(welcome: Any, error: type[Exception], message: str):
    with liar(welcome=welcome) as url, pytest.raises(error, match=message):
        RemotePolicy.connect(url)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n"])
def test_something_else_at_the_port_is_a_lost_connection_or_a_refusal_in_time(said: bytes):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"ws://127.0.0.1:{sock.getsockname()[1]}"

        def speak() -> None:
            connection, _ = sock.accept()
            connection.sendall(said)
            time.sleep(0.5)
            connection.close()

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(
            (RemoteConnectionError, RemoteRefusedError), match=r"cannot be reached|HTTP status 200"
        ):
            RemotePolicy.connect(url, deadline_s=0.3, timeout_s=0.3)
        thread.join()


def test_an_answer_that_comes_after_the_timeout_is_not_taken_for_the_next():
    def slow(request: PlanRequest) -> bytes:
        time.sleep(0.4 if request.seed == 99 else 0.0)
        return planned(request.id, actions=np.full((4, 2), float(request.seed)))

    with liar(slow) as url:
        policy = RemotePolicy.connect(url, deadline_s=0.2, timeout_s=10)
        policy._timeout_s = 0.2
        with pytest.raises(RemoteTimeoutError):
            policy.plan_from(STATES, steps=4, seed=99)
        time.sleep(0.4)
        policy._timeout_s = 10
        assert (policy.plan_from(STATES, steps=4, seed=5).actions == 5.0).all()
        policy.close()


def test_the_client_needs_numpy_websockets_and_msgpack_alone():
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
    assert {"numpy", "websockets", "msgpack", "nsde_policy"} <= found
    assert not found & {"torch", "safetensors", "tyro"}
