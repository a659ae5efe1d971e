"""Tests for deploy/server: replies, health, settings and shutdown."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from nsde_policy import __version__
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Hello,
    PlanReply,
    Refusal,
    Welcome,
    decode,
    encode,
)
from nsde_policy.deploy.server.auth import RateLimiter
from nsde_policy.deploy.server.config import ServeSettings
from nsde_policy.deploy.server.server import PolicyServer
from nsde_policy.errors import ConfigError, RemoteError
from nsde_policy.planner.spec import Plan
from tests.helpers.policy_servers import (
    CALIBRATION,
    SPEC,
    STATES,
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


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with serve_in_thread(LinearPlanner(), patience_s=1.0, max_clients=8, deadline_s=5.0) as running:
        yield running


@pytest.fixture(autouse=True)
def check_that_the_server_still_works(running: RunningServer) -> Iterator[None]:
    """Serve a normal client after each test."""
    yield
    assert_server_works(running)


def test_greeting_holds_version_spec_and_limits(running: RunningServer):
    with running.connect() as line:
        line.send(encode(Hello(PROTOCOL, "test")))
        welcome = decode(line.recv(timeout=5), Welcome)
    assert (welcome.protocol, *welcome.parse()) == (PROTOCOL, SPEC, CALIBRATION)
    assert (welcome.max_message, welcome.max_steps, welcome.deadline_s) == (65_536, 128, 5.0)


def test_fragmented_message_is_accepted(running: RunningServer):
    line = running.connect_and_greet()
    packed = encode_request(5)
    line.send([packed[:20], packed[20:21], packed[21:]])
    assert receive_reply(line).id == 5
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
def test_planner_error_is_logged_by_the_server_and_hidden_from_the_client(error: BaseException):
    def fail(seed: int) -> None:
        if seed == 99:
            raise error

    with serve_in_thread(LinearPlanner(fail)) as running:
        with RemotePolicy.connect(running.url) as policy:
            with pytest.raises(RemoteError, match="the policy failed; see the server's log") as told:
                policy.plan_from(STATES, steps=4, seed=99)
            assert policy.plan_from(STATES, steps=4, seed=1).actions.shape == (4, 2)
        assert "secret" not in str(told.value)
        (event,) = running.find_events("failed")
        assert event["error"].startswith(type(error).__name__)
        assert "test_serve.py:" in event["error"]
        assert_server_works(running)


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
def test_invalid_plan_is_not_sent(plan: Plan):
    with serve_in_thread(LinearPlanner(lambda seed: plan if seed == 99 else None)) as running:
        with RemotePolicy.connect(running.url) as policy, pytest.raises(RemoteError):
            policy.plan_from(STATES, steps=4, seed=99)
        assert_server_works(running)


def test_late_plan_is_refused_and_dropped():
    go = threading.Event()
    with serve_in_thread(LinearPlanner(lambda seed: go.wait(10) and None if seed == 99 else None)) as running:
        with RemotePolicy.connect(running.url, deadline_s=0.2, timeout_s=10) as policy:
            with pytest.raises(RemoteError, match=r"no plan within 0\.200 s"):
                policy.plan_from(STATES, steps=4, seed=99)
            go.set()
            wanted = LinearPlanner().plan_from(STATES, steps=4, seed=5)
            wait_until(lambda: running.server._thread.busy_s == 0.0, "the late one is done")
            assert np.array_equal(policy.plan_from(STATES, steps=4, seed=5).actions, wanted.actions)
        assert running.find_events("late") == [{"event": "late", "client": 1, "deadline_s": 0.2}]


def test_server_deadline_limits_requests_and_expired_ones_are_not_started():
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None if seed == 99 else None
    with serve_in_thread(planner, deadline_s=1.0) as running:
        slow, other = running.connect_and_greet(), running.connect_and_greet()
        slow.send(encode_request(1, seed=99, deadline_s=1000.0))
        wait_until(lambda: planner.seeds == [99], "the slow one has begun")
        other.send(encode_request(2, seed=50, deadline_s=1000.0))
        for line, number in ((slow, 1), (other, 2)):
            refusal = receive_reply(line)
            assert isinstance(refusal, Refusal)
            assert (refusal.id, refusal.code) == (number, "late")
        go.set()
        other.send(encode_request(3, seed=51))
        assert receive_reply(other).id == 3
        assert planner.seeds == [99, 51]
        slow.close()
        other.close()


def test_health_reports_a_stalled_planner():
    started, go = threading.Event(), threading.Event()

    def wait(seed: int) -> None:
        started.set()
        go.wait(20)

    with serve_in_thread(LinearPlanner(wait), deadline_s=0.05) as running:
        assert get_health(running) == (
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
                "dropped": 0,
            },
        )
        line = running.connect_and_greet()
        for _ in range(100):  # on a busy machine, a request can be late before its plan begins
            line.send(encode_request(seed=1))
            assert isinstance(receive_reply(line), Refusal)
            if started.is_set():
                break
        wait_until(lambda: get_health(running)[0] == 503, "a stalled planner is reported")
        assert get_health(running)[1]["status"] == "stalled"
        go.set()
        wait_until(lambda: get_health(running)[0] == 200, "it has recovered")
        line.close()


def test_health_is_available_under_load(running: RunningServer):
    done = threading.Event()

    def ask(seed: int) -> None:
        with RemotePolicy.connect(running.url, timeout_s=10, deadline_s=5) as policy:
            while not done.is_set():
                policy.plan_from(STATES, steps=100, seed=seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        before = get_health(running)[1]["planned"]
        found = [get_health(running) for _ in range(20)]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert {code for code, _ in found} == {200}
    assert found[-1][1]["planned"] > before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "0.0.0.0"}, "accepts connections from other machines, which needs a token"),
        ({"host": "::"}, "needs a token"),
        ({"host": ""}, "needs a token"),
        ({"host": "192.168.1.5"}, "needs a token"),
        ({"host": "localhost.evil.example"}, "needs a token"),
        ({"token": "short"}, "at least 16 ASCII characters"),
        ({"token": "twenty characters with blanks"}, "no blanks"),
        ({"token": ""}, "got 0: make one"),
        ({"port": 65536}, "need port <= 65,535, got 65536"),
        ({"max_message": 10}, "need max_message > 1,024"),
        ({"max_clients": 0}, "need max_clients >= 1"),
        ({"deadline_s": float("nan")}, "need deadline_s > 0"),
    ],
)
def test_unsafe_or_invalid_settings_are_rejected(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ServeSettings(**settings)


def test_loopback_needs_no_token_and_the_token_is_not_printed():
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        ServeSettings(host=host)
    assert TOKEN not in repr(ServeSettings(host="0.0.0.0", token=TOKEN))


def test_max_message_too_small_for_a_plan_is_rejected():
    with pytest.raises(ConfigError, match="plans of 128 actions of this policy need max_message >= 10280"):
        ServeSettings(max_message=2000, max_steps=128).compute_max_steps(SPEC)
    assert ServeSettings(max_message=10280, max_steps=128).compute_max_steps(SPEC) == 128


@pytest.mark.parametrize(
    ("longest", "setting", "steps"),
    [(0, None, 6), (16, None, 10), (8, None, 8), (0, 100, 100), (16, 100, 16)],
)
def test_max_steps_fits_the_chunk_by_default(longest: int, setting: int | None, steps: int):
    spec = replace(SPEC, longest_chunk=longest)
    assert ServeSettings(max_steps=setting).compute_max_steps(spec) == steps


def test_session_keeps_within_the_default_max_steps():
    with (
        serve_in_thread(LinearPlanner(), max_steps=None) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as policy,
    ):
        with policy.session(rate_hz=10, policy_hz=10, plan_ahead=True) as session:
            session.step([0.1, 0.2, 0.3])
        with pytest.raises(ConfigError, match="a plan of this policy has at most 6 commands"):
            policy.session(rate_hz=10, policy_hz=10, chunk=7)
        assert get_health(running)[1]["refused"] == 0


def test_rate_limiter_allows_one_second_of_burst():
    limiter = RateLimiter(10.0)
    burst = [limiter.wait_s(5.0) for _ in range(12)]
    assert burst[:10] == [0.0] * 10
    assert burst[10:] == pytest.approx([0.1, 0.2])
    assert [limiter.wait_s(500.0) for _ in range(11)][-1] == pytest.approx(0.1)


def test_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PolicyServer(LinearPlanner(), ServeSettings(port=port), lambda *_, **__: None)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(server.run(lambda port: None))


def test_stop_answers_running_requests():
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None
    with serve_in_thread(planner) as running:
        line = running.connect_and_greet()
        line.send(encode_request(1))
        wait_until(lambda: bool(planner.seeds), "it has begun")
        running.server.stop()
        running.wait_for("stopping", in_flight=1)
        go.set()
        assert isinstance(receive_reply(line), PlanReply)
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
