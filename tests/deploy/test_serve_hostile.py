"""Tests for deploy/server with hostile clients; a normal client is served after each."""

import contextlib
import itertools
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Hello,
    PlanReply,
    Refusal,
    encode,
)
from nsde_policy.planner.spec import Plan
from tests.helpers.policy_servers import (
    STATES,
    UPGRADE,
    LinearPlanner,
    RunningServer,
    assert_server_works,
    encode_request,
    get_health,
    receive_reply,
    serve_in_thread,
    wait_until,
)

TOKEN = "correct-horse-battery"


HELLO = Frame(Opcode.BINARY, encode(Hello(PROTOCOL, "test"))).serialize(mask=True)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with serve_in_thread(LinearPlanner(), patience_s=1.0, max_clients=8, deadline_s=5.0) as running:
        yield running


@pytest.fixture(autouse=True)
def check_that_the_server_still_works(running: RunningServer) -> Iterator[None]:
    """Serve a normal client after each test."""
    yield
    assert_server_works(running)


def test_client_of_another_protocol_is_refused(running: RunningServer):
    with running.connect() as line:
        line.send(encode(Hello(PROTOCOL + 1, "9.9")))
        refusal = receive_reply(line)
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.id) == ("wrong_version", None)
        assert f"protocol {PROTOCOL}" in refusal.message
        with pytest.raises(ConnectionClosed):
            line.recv(timeout=5)


VALID = encode_request()
MALFORMED: dict[str, bytes | str] = {
    "text": "let me in",
    "not msgpack": b"\xc1\xc1",
    "empty": b"",
    "cut off": encode_request()[:-3],
    "a second greeting": encode(Hello(PROTOCOL, "test")),
    "a reply": encode(PlanReply.pack(1, Plan(np.ones((4, 2))))),
    "not finite": VALID.replace(STATES.tobytes(), np.full((2, 5), np.nan, np.float32).tobytes()),
    "infinite": VALID.replace(STATES.tobytes(), np.full((2, 5), np.inf, np.float32).tobytes()),
    "endless nesting": b"\x91" * 50_000,
    "announces gigabytes": b"\xc6\xff\xff\xff\xff",
    "an extension": msgspec.msgpack.encode({"kind": "plan", "states": msgspec.msgpack.Ext(1, b"x")}),
    "a pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93.",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_closes_the_connection(running: RunningServer, name: str):
    line = running.connect_and_greet()
    line.send(MALFORMED[name])
    refusal = receive_reply(line)
    assert isinstance(refusal, Refusal)
    assert (refusal.id, refusal.code) == (None, "malformed")
    assert "\n" not in refusal.message
    with pytest.raises(ConnectionClosed) as closed:
        line.recv(timeout=5)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": np.zeros((2, 4))}, r"have shape \(2, 5\), got \(2, 4\)"),
        ({"states": np.zeros((1, 10))}, r"have shape \(2, 5\), got \(1, 10\)"),
        ({"states": np.zeros((400, 5))}, r"have shape \(2, 5\), got \(400, 5\)"),
        ({"steps": 129}, "from 1 to 128 actions, got 129"),
        ({"steps": 2**62}, "from 1 to 128 actions"),
    ],
)
def test_bad_request_is_refused_and_the_connection_stays_open(
    running: RunningServer, changes: dict[str, Any], message: str
):
    line = running.connect_and_greet()
    line.send(encode_request(5, **changes))
    refusal = receive_reply(line)
    assert isinstance(refusal, Refusal)
    assert (refusal.id, refusal.code) == (5, "bad_request")
    assert re.search(message, refusal.message)
    line.send(encode_request(6))
    planned = receive_reply(line)
    assert isinstance(planned, PlanReply)
    assert planned.id == 6
    line.close()


def test_oversized_message_closes_the_connection(running: RunningServer):
    line = running.connect_and_greet()
    with contextlib.suppress(ConnectionClosed):
        line.send(b"\x00" * 10_000_000)
    with pytest.raises(ConnectionClosed) as closed:
        line.recv(timeout=10)
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009


def test_oversized_frame_header_closes_the_connection(running: RunningServer):
    sock = running.open_socket(UPGRADE)
    assert b"101 Switching" in sock.recv(4096)
    sock.sendall(b"\x82\xff" + (2**40).to_bytes(8, "big") + b"mask")
    assert b"\x03\xf1" in received_until_closed(sock)  # close code 1009
    sock.close()


def received_until_closed(sock: socket.socket) -> bytes:
    sock.settimeout(10)
    got = b""
    while True:
        try:
            data = sock.recv(65_536)
        except ConnectionResetError:
            return got
        if not data:
            return got
        got += data


def send_until_refused(sock: socket.socket, parts: Iterable[bytes], pause_s: float = 0.0) -> None:
    """Send until the server closes the connection; fail if it accepts all parts."""
    try:
        for part in parts:
            sock.sendall(part)
            time.sleep(pause_s)
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        sock.close()
    pytest.fail("the server accepted everything")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"\x00" * 5000,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000,
    ],
    ids=["nothing", "half a word", "TLS", "zeros", "headers without end"],
)
def test_sockets_that_do_not_send_http_are_closed(running: RunningServer, data: bytes):
    sock = running.open_socket()
    try:
        sock.sendall(data)
        received_until_closed(sock)
    except (BrokenPipeError, ConnectionResetError):
        pass
    sock.close()


def test_client_without_greeting_is_disconnected(running: RunningServer):
    with running.connect() as line, pytest.raises(ConnectionClosed):
        line.recv(timeout=10)
    running.wait_for("disconnected", why="timeout")


def test_client_that_sends_single_bytes_is_disconnected(running: RunningServer):
    """The bytes arrive in time, but the client cannot answer a ping within a frame."""
    sock = running.open_socket(UPGRADE)
    assert b"101 Switching" in sock.recv(4096)
    sock.sendall(HELLO)
    frame = Frame(Opcode.BINARY, b"\x00" * 60_000).serialize(mask=True)
    send_until_refused(sock, (bytes([byte]) for byte in frame), pause_s=0.02)


def test_client_that_does_not_read_is_disconnected():
    """It requests long plans and reads no reply: the server stops reading, then disconnects."""
    with serve_in_thread(LinearPlanner(), patience_s=0.5) as running:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(("127.0.0.1", running.port))
        sock.sendall(UPGRADE)
        assert b"101 Switching" in sock.recv(129)
        frame = Frame(Opcode.BINARY, encode_request(steps=128)).serialize(mask=True)
        sock.sendall(HELLO)
        sock.settimeout(20)
        send_until_refused(sock, itertools.repeat(frame))
        (gone,) = running.wait_for("disconnected")
        assert gone["why"] in ("timeout", "closed with no close frame")
        assert_server_works(running)


def test_client_that_disconnects_during_its_request_is_removed():
    go = threading.Event()
    with serve_in_thread(LinearPlanner(lambda seed: go.wait(10) and None if seed == 99 else None)) as running:
        line = running.connect_and_greet()
        line.send(encode_request(seed=99))
        line.socket.shutdown(socket.SHUT_RDWR)
        go.set()
        running.wait_for("disconnected")
        assert_server_works(running)
        wait_until(lambda: get_health(running)[1]["clients"] == 0, "no client left")


def test_clients_beyond_the_limit_are_refused_until_one_leaves():
    with serve_in_thread(LinearPlanner(), max_clients=2) as running:
        first, second = running.connect_and_greet(), running.connect_and_greet()
        for _ in range(3):
            with pytest.raises(InvalidStatus) as refused, running.connect():
                pass
            assert refused.value.response.status_code == 503
        first.close()
        running.wait_for("disconnected")
        assert_server_works(running)
        second.send(encode_request(3))
        assert isinstance(receive_reply(second), PlanReply)
        second.close()


def test_client_limit_holds_for_clients_that_greet_at_the_same_time():
    with serve_in_thread(LinearPlanner(), max_clients=2) as running:
        lines = [running.connect().__enter__() for _ in range(3)]
        for line in lines[:2]:
            line.send(encode(Hello(PROTOCOL, "test")))
            line.recv(timeout=10)
        lines[2].send(encode(Hello(PROTOCOL, "test")))
        with pytest.raises(ConnectionClosed) as closed:
            lines[2].recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        for line in lines:
            line.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", UPGRADE], ids=["silent", "partial", "no greeting"])
def test_connections_that_stop_before_their_greeting_do_not_block_clients(sent: bytes):
    with serve_in_thread(LinearPlanner(), max_clients=2, patience_s=60.0) as running:
        crowd = [running.open_socket(sent) for _ in range(40)]
        assert_server_works(running)
        for sock in crowd:
            sock.close()


def test_clients_are_served_in_turn():
    """A client that asks without pause waits for those that asked before its second request."""
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None if seed == 99 else None
    with serve_in_thread(planner, deadline_s=20.0) as running:
        greedy, robot = running.connect_and_greet(), running.connect_and_greet()
        greedy.send(encode_request(1, seed=99, deadline_s=20.0))
        wait_until(lambda: planner.seeds == [99], "the first has begun")
        for number in (2, 3, 4):
            greedy.send(encode_request(number, seed=number, deadline_s=20.0))
        robot.send(encode_request(1, seed=50, deadline_s=20.0))
        wait_until(lambda: running.server._in_flight == 2, "the robot waits")
        go.set()
        for line, answers in ((robot, 1), (greedy, 4)):
            assert all(isinstance(receive_reply(line), PlanReply) for _ in range(answers))
        assert planner.seeds == [99, 50, 2, 3, 4]
        robot.close()
        greedy.close()


def test_waiting_request_of_a_client_that_disconnects_is_dropped():
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None if seed == 99 else None
    with serve_in_thread(planner, deadline_s=20.0) as running:
        slow, leaving = running.connect_and_greet(), running.connect_and_greet()
        slow.send(encode_request(1, seed=99, deadline_s=20.0))
        wait_until(lambda: planner.seeds == [99], "the slow one has begun")
        leaving.send(encode_request(2, seed=50, deadline_s=20.0))
        wait_until(lambda: running.server._in_flight == 2, "the other one waits")
        leaving.socket.shutdown(socket.SHUT_RDWR)
        running.wait_for("dropped", client=2)
        go.set()
        assert isinstance(receive_reply(slow), PlanReply)
        assert planner.seeds == [99]
        assert get_health(running)[1]["dropped"] == 1
        slow.close()
        leaving.close()


def test_requests_of_one_client_run_one_at_a_time():
    """Of ten requests, the first blocks; no other one of this client is started."""
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None if seed == 100 else None
    with serve_in_thread(planner, deadline_s=20.0) as running:
        line = running.connect_and_greet()
        for number in range(10):
            line.send(encode_request(number, seed=100 + number, deadline_s=20.0))
        wait_until(lambda: planner.seeds == [100], "the first has begun")
        assert get_health(running)[1]["clients"] == 1
        assert planner.seeds == [100]
        go.set()
        assert [receive_reply(line).id for _ in range(10)] == list(range(10))
        line.close()


def test_other_paths_and_web_pages_are_refused(running: RunningServer):
    with pytest.raises(urllib.error.HTTPError) as missing:
        urllib.request.urlopen(f"http://127.0.0.1:{running.port}/admin", timeout=10)
    assert missing.value.code == 404
    with pytest.raises(InvalidStatus) as refused, running.connect(origin="http://evil.example"):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "Bearer wrong-horse-battery")],
        [("Authorization", TOKEN)],
        [("Authorization", f"Bearer {TOKEN}x")],
        [("Authorization", "Bearer \xff\xfe")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")],
    ],
    ids=["none", "wrong", "no scheme", "longer", "not ASCII", "two"],
)
def test_connection_needs_the_token(guarded: RunningServer, headers: list[tuple[str, str]]):
    with pytest.raises(InvalidStatus) as refused, guarded.connect(additional_headers=headers):
        pass
    assert refused.value.response.status_code == 401
    assert get_health(guarded)[0] == 200
    assert_server_works(guarded, token=TOKEN)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with serve_in_thread(LinearPlanner(), token=TOKEN) as running:
        yield running
