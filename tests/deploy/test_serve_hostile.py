"""Tests for server.py: hostile clients over real sockets, and a good one that is served after each."""

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

import msgpack
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
from tests.helpers.policy_servers import (
    UPGRADE,
    LinearPlanner,
    Served,
    answer,
    assert_serves,
    healthz,
    request,
    served,
    until,
)

TOKEN = "correct-horse-battery"


HELLO = Frame(Opcode.BINARY, encode(Hello(PROTOCOL, "test"))).serialize(mask=True)


@pytest.fixture(scope="module")
def house() -> Iterator[Served]:
    with served(LinearPlanner(), patience_s=1.0, max_clients=8, deadline_s=5.0) as running:
        yield running


@pytest.fixture
def patient() -> Iterator[Served]:
    """A server that drops nobody for being slow."""
    with served(LinearPlanner(), patience_s=60.0) as running:
        yield running


@pytest.fixture(autouse=True)
def a_good_client_is_served_afterwards(house: Served) -> Iterator[None]:
    """After whatever a test did to the house."""
    yield
    assert_serves(house)


def test_another_protocol_is_told_so_and_let_go(house: Served):
    with house.line() as line:
        line.send(encode(Hello(PROTOCOL + 1, "9.9")))
        refusal = answer(line)
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.id) == ("wrong_version", None)
        assert f"protocol {PROTOCOL}" in refusal.message
        with pytest.raises(ConnectionClosed):
            line.recv(timeout=5)


MALFORMED: dict[str, bytes | str] = {
    "text": "let me in",
    "not msgpack": b"\xc1\xc1",
    "empty": b"",
    "cut off": request()[:-3],
    "a second greeting": encode(Hello(PROTOCOL, "test")),
    "an answer": encode(PlanReply(1, np.ones((4, 2)), None, None)),
    "not finite": request(states=np.full((2, 5), np.nan)),
    "infinite": request(states=np.full((2, 5), np.inf, np.float32)),
    "endless nesting": b"\x91" * 50_000,
    "announces gigabytes": b"\xc6\xff\xff\xff\xff",
    "an extension": msgpack.packb({"kind": "plan", "states": msgpack.ExtType(1, b"x")}),
    "a pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93.",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_request_is_refused_and_the_connection_closed(house: Served, name: str):
    line = house.greeted()
    line.send(MALFORMED[name])
    refusal = answer(line)
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
def test_a_request_that_cannot_be_planned_is_refused_and_the_next_is_answered(
    house: Served, changes: dict[str, Any], message: str
):
    line = house.greeted()
    line.send(request(5, **changes))
    refusal = answer(line)
    assert isinstance(refusal, Refusal)
    assert (refusal.id, refusal.code) == (5, "bad_request")
    assert re.search(message, refusal.message)
    line.send(request(6))
    planned = answer(line)
    assert isinstance(planned, PlanReply)
    assert planned.id == 6
    line.close()


def test_an_oversized_message_closes_the_connection_before_it_is_read(house: Served):
    line = house.greeted()
    with contextlib.suppress(ConnectionClosed):
        line.send(b"\x00" * 10_000_000)
    with pytest.raises(ConnectionClosed) as closed:
        line.recv(timeout=10)
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009


def test_a_frame_that_announces_a_terabyte_is_refused_by_its_header(house: Served):
    sock = house.raw(UPGRADE)
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
    """Send until the other side has hung up; it has to, before the parts end."""
    try:
        for part in parts:
            sock.sendall(part)
            time.sleep(pause_s)
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        sock.close()
    pytest.fail("everything was taken")


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
def test_sockets_that_do_not_speak_http_are_dropped(house: Served, data: bytes):
    sock = house.raw()
    try:
        sock.sendall(data)
        received_until_closed(sock)
    except (BrokenPipeError, ConnectionResetError):
        pass
    sock.close()


def test_a_client_that_never_greets_is_dropped(house: Served):
    with house.line() as line, pytest.raises(ConnectionClosed):
        line.recv(timeout=10)
    house.wait_for("disconnected", why="too slow")


def test_a_client_that_sends_a_byte_at_a_time_is_dropped(house: Served):
    """Each byte comes in time; what does not is the answer to a ping, which has no place inside a frame."""
    sock = house.raw(UPGRADE)
    assert b"101 Switching" in sock.recv(4096)
    sock.sendall(HELLO)
    frame = Frame(Opcode.BINARY, b"\x00" * 60_000).serialize(mask=True)
    send_until_refused(sock, (bytes([byte]) for byte in frame), pause_s=0.02)


def test_a_client_that_never_reads_is_dropped():
    """It asks for long plans and reads none of them: the server stops reading, then hangs up."""
    with served(LinearPlanner(), patience_s=0.5, max_rate=1e6) as house:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(("127.0.0.1", house.port))
        sock.sendall(UPGRADE)
        assert b"101 Switching" in sock.recv(129)
        frame = Frame(Opcode.BINARY, request(steps=128)).serialize(mask=True)
        sock.sendall(HELLO)
        sock.settimeout(20)
        send_until_refused(sock, itertools.repeat(frame))
        (gone,) = house.wait_for("disconnected")
        assert gone["why"] in ("too slow", "closed with no word")
        assert_serves(house)


def test_pings_whose_pongs_nobody_reads_end_the_connection(patient: Served):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.connect(("127.0.0.1", patient.port))
    sock.sendall(UPGRADE)
    sock.recv(129)
    sock.sendall(HELLO)
    sock.settimeout(20)
    pings = Frame(Opcode.PING, b"x" * 120).serialize(mask=True) * 500
    send_until_refused(sock, itertools.repeat(pings, 1000))
    assert_serves(patient)


def test_a_message_in_endless_empty_parts_ends_the_connection(patient: Served):
    sock = patient.raw(UPGRADE)
    assert b"101 Switching" in sock.recv(4096)
    sock.sendall(HELLO)
    sock.sendall(Frame(Opcode.BINARY, b"", fin=False).serialize(mask=True))
    sock.sendall(Frame(Opcode.CONT, b"", fin=False).serialize(mask=True) * 100)
    received_until_closed(sock)
    assert_serves(patient)


def test_a_client_that_hangs_up_in_the_middle_of_its_request_leaves_nothing_behind():
    go = threading.Event()
    with served(LinearPlanner(lambda seed: go.wait(10) and None if seed == 99 else None)) as house:
        line = house.greeted()
        line.send(request(seed=99))
        line.socket.shutdown(socket.SHUT_RDWR)
        go.set()
        house.wait_for("disconnected")
        assert_serves(house)
        until(lambda: healthz(house)[1]["clients"] == 0, "no client left")


def test_more_clients_than_allowed_are_refused_at_the_door_until_one_leaves():
    with served(LinearPlanner(), max_clients=2) as house:
        first, second = house.greeted(), house.greeted()
        for _ in range(3):
            with pytest.raises(InvalidStatus) as refused, house.line():
                pass
            assert refused.value.response.status_code == 503
        first.close()
        house.wait_for("disconnected")
        assert_serves(house)
        second.send(request(3))
        assert isinstance(answer(second), PlanReply)
        second.close()


def test_a_crowd_of_silent_sockets_keeps_nobody_out():
    with served(LinearPlanner(), max_clients=2, patience_s=60.0) as house:
        crowd = [house.raw() for _ in range(200)]
        assert_serves(house)
        gone = 0
        for sock in crowd:
            sock.setblocking(False)
            try:
                gone += not sock.recv(1)
            except ConnectionResetError:
                gone += 1
            except BlockingIOError:
                pass
            sock.close()
        assert gone >= 200 - 2 - 16


def test_one_client_has_one_request_in_flight_however_many_it_sends():
    """Ten requests at once, the first of which hangs: no other of that client's is begun meanwhile."""
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None if seed == 100 else None
    with served(planner, deadline_s=20.0) as house:
        line = house.greeted()
        for number in range(10):
            line.send(request(number, seed=100 + number, deadline_s=20.0))
        until(lambda: planner.seeds == [100], "the first has begun")
        assert healthz(house)[1]["clients"] == 1
        assert planner.seeds == [100]
        go.set()
        assert [answer(line).id for _ in range(10)] == list(range(10))
        line.close()


def test_other_paths_and_web_pages_are_refused(house: Served):
    with pytest.raises(urllib.error.HTTPError) as missing:
        urllib.request.urlopen(f"http://127.0.0.1:{house.port}/admin", timeout=10)
    assert missing.value.code == 404
    with pytest.raises(InvalidStatus) as refused, house.line(origin="http://evil.example"):
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
def test_without_the_token_there_is_no_connection(guarded: Served, headers: list[tuple[str, str]]):
    with pytest.raises(InvalidStatus) as refused, guarded.line(additional_headers=headers):
        pass
    assert refused.value.response.status_code == 401
    assert healthz(guarded)[0] == 200
    assert_serves(guarded, token=TOKEN)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with served(LinearPlanner(), token=TOKEN) as running:
        yield running
