"""Tests for server.py: hostile clients over real sockets, and a good one that is served after each."""

import asyncio
import contextlib
import itertools
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from policy_servers import CALIBRATION, SPEC, STATES, UPGRADE, LinearPlanner, Served, request, served, until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from nsde_policy import __version__
from nsde_policy.errors import ConfigError, RemoteFailedError, RemoteLateError
from nsde_policy.planner import Plan
from nsde_policy.remote.client import RemotePolicy
from nsde_policy.remote.protocol import (
    PROTOCOL,
    Hello,
    PlanReply,
    Refusal,
    Welcome,
    decode,
    decode_answer,
    encode,
)
from nsde_policy.remote.server import PolicyServer
from nsde_policy.remote.serving import Pace, ServeSettings

ROOT = Path(__file__).parents[1]
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


def assert_serves(house: Served, **options: Any) -> None:
    seed = 11
    wanted = LinearPlanner().plan_from(STATES, steps=6, seed=seed)
    with RemotePolicy.connect(house.url, timeout_s=10, deadline_s=5, **options) as policy:
        plan = policy.plan_from(STATES, steps=6, seed=seed)
    assert plan.states is not None
    assert wanted.states is not None
    assert plan.actions.tobytes() == wanted.actions.tobytes()
    assert plan.states.tobytes() == wanted.states.tobytes()


def answer(line: Any) -> PlanReply | Refusal:
    return decode_answer(line.recv(timeout=10), PlanReply)


def healthz(house: Served) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{house.port}/healthz", timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_greeting_tells_the_version_the_spec_and_the_limits(house: Served):
    with house.line() as line:
        line.send(encode(Hello(PROTOCOL, "test")))
        welcome = decode(line.recv(timeout=5), Welcome)
    assert (welcome.protocol, welcome.spec, welcome.calibration) == (PROTOCOL, SPEC, CALIBRATION)
    assert (welcome.max_message, welcome.max_steps, welcome.deadline_s) == (65_536, 128, 5.0)


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


def test_a_message_in_a_few_parts_is_one_message(house: Served):
    line = house.greeted()
    packed = request(5)
    line.send([packed[:20], packed[20:21], packed[21:]])
    assert answer(line).id == 5
    line.close()


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


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret/path.py line 3"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(),
        TimeoutError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_planner_that_raises_is_logged_here_and_not_explained_there(error: BaseException):
    def fail(seed: int) -> None:
        if seed == 99:
            raise error

    with served(LinearPlanner(fail)) as house:
        with RemotePolicy.connect(house.url) as policy:
            with pytest.raises(
                RemoteFailedError, match="the policy failed; the server's log says why"
            ) as told:
                policy.plan_from(STATES, steps=4, seed=99)
            assert policy.plan_from(STATES, steps=4, seed=1).actions.shape == (4, 2)
        assert "secret" not in str(told.value)
        (event,) = house.named("failed")
        assert event["error"].startswith(type(error).__name__)
        assert "test_serve.py:" in event["error"]
        assert_serves(house)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(np.full((4, 2), np.nan)),
        Plan(np.zeros((3, 2))),
        Plan(np.zeros((4, 2)), np.full((5, 5), np.inf)),
        Plan(np.zeros((4, 2)), np.zeros((4, 5))),
        Plan(np.zeros((4, 2)), std=np.full((4, 2), np.nan)),
    ],
    ids=["nan", "too short", "infinite states", "states too short", "no spread"],
)
def test_a_plan_that_no_robot_should_see_never_leaves(plan: Plan):
    with served(LinearPlanner(lambda seed: plan if seed == 99 else None)) as house:
        with RemotePolicy.connect(house.url) as policy, pytest.raises(RemoteFailedError):
            policy.plan_from(STATES, steps=4, seed=99)
        assert_serves(house)


def test_a_late_plan_is_answered_late_and_its_result_dropped():
    go = threading.Event()
    with served(LinearPlanner(lambda seed: go.wait(10) and None if seed == 99 else None)) as house:
        with RemotePolicy.connect(house.url, deadline_s=0.2, timeout_s=10) as policy:
            with pytest.raises(RemoteLateError, match=r"no plan within 0\.200 s"):
                policy.plan_from(STATES, steps=4, seed=99)
            go.set()
            wanted = LinearPlanner().plan_from(STATES, steps=4, seed=5)
            until(lambda: house.server._thread.busy_s == 0.0, "the late one is done")
            assert np.array_equal(policy.plan_from(STATES, steps=4, seed=5).actions, wanted.actions)
        assert house.named("late") == [{"event": "late", "client": 1, "deadline_s": 0.2}]


def test_the_server_has_a_deadline_of_its_own_and_what_nobody_waits_for_is_not_begun():
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None if seed == 99 else None
    with served(planner, deadline_s=0.2) as house:
        slow, other = house.greeted(), house.greeted()
        slow.send(request(1, seed=99, deadline_s=1000.0))
        until(lambda: planner.seeds == [99], "the slow one has begun")
        other.send(request(2, seed=50, deadline_s=1000.0))
        for line, number in ((slow, 1), (other, 2)):
            refusal = answer(line)
            assert isinstance(refusal, Refusal)
            assert (refusal.id, refusal.code) == (number, "late")
        go.set()
        other.send(request(3, seed=51))
        assert answer(other).id == 3
        assert planner.seeds == [99, 51]
        slow.close()
        other.close()


def test_health_is_told_while_the_planner_is_busy_and_says_when_it_hangs():
    go = threading.Event()
    with served(LinearPlanner(lambda seed: go.wait(20) and None), deadline_s=0.05) as house:
        assert healthz(house) == (
            200,
            {
                "status": "ok",
                "protocol": PROTOCOL,
                "version": __version__,
                "clients": 0,
                "planned": 0,
                "refused": 0,
                "late": 0,
                "failed": 0,
            },
        )
        line = house.greeted()
        line.send(request(seed=1))
        assert isinstance(answer(line), Refusal)
        until(lambda: healthz(house)[0] == 503, "a stalled planner is reported")
        assert healthz(house)[1]["status"] == "stalled"
        go.set()
        until(lambda: healthz(house)[0] == 200, "it has recovered")
        line.close()


def test_health_is_told_under_load(house: Served):
    done = threading.Event()

    def ask(seed: int) -> None:
        with RemotePolicy.connect(house.url, timeout_s=10, deadline_s=5) as policy:
            while not done.is_set():
                policy.plan_from(STATES, steps=100, seed=seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        before = healthz(house)[1]["planned"]
        found = [healthz(house) for _ in range(20)]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert {code for code, _ in found} == {200}
    assert found[-1][1]["planned"] > before


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "0.0.0.0"}, "can be reached from other machines: serve there with a token"),
        ({"host": "::"}, "with a token"),
        ({"host": ""}, "with a token"),
        ({"host": "192.168.1.5"}, "with a token"),
        ({"host": "localhost.evil.example"}, "with a token"),
        ({"token": "short"}, "at least 16 ASCII characters"),
        ({"token": "twenty characters with blanks"}, "no blanks"),
        ({"token": ""}, "got 0: make one"),
        ({"port": 65536}, "need a port from 0 to 65535"),
        ({"max_message": 10}, "need max_message > 1024"),
        ({"max_clients": 0}, "need max_clients >= 1"),
        ({"deadline_s": float("nan")}, "need deadline_s > 0"),
    ],
)
def test_settings_that_would_be_unsafe_or_cannot_work_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ServeSettings(**settings)


def test_this_machine_needs_no_token_and_a_token_is_never_printed():
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        ServeSettings(host=host)
    assert TOKEN not in repr(ServeSettings(host="0.0.0.0", token=TOKEN))


def test_plans_that_would_not_fit_a_message_are_refused_at_the_start():
    with pytest.raises(ConfigError, match="plans of 128 actions of this policy need max_message >= 10280"):
        ServeSettings(max_message=2000).longest_plan(SPEC)
    assert ServeSettings(max_message=10280).longest_plan(SPEC) == 128


def test_a_client_faster_than_its_rate_waits_and_a_pause_is_not_saved_up():
    pace = Pace(10.0)
    burst = [pace.wait_s(5.0) for _ in range(12)]
    assert burst[:10] == [0.0] * 10
    assert burst[10:] == pytest.approx([0.1, 0.2])
    assert [pace.wait_s(500.0) for _ in range(11)][-1] == pytest.approx(0.1)


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PolicyServer(LinearPlanner(), ServeSettings(port=port), lambda *_, **__: None)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(server.run(lambda port: None))


def test_stopping_answers_what_is_in_flight():
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None
    with served(planner) as house:
        line = house.greeted()
        line.send(request(1))
        until(lambda: bool(planner.seeds), "it has begun")
        house.server.stop()
        house.wait_for("stopping", in_flight=1)
        go.set()
        assert isinstance(answer(line), PlanReply)
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
