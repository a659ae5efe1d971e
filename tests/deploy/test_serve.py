"""Tests for server.py: what it answers, what it says of itself, what it is told, how it stops."""

import asyncio
import socket
import threading
from collections.abc import Iterator
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
from nsde_policy.deploy.server.auth import Pace
from nsde_policy.deploy.server.config import ServeSettings
from nsde_policy.deploy.server.server import PolicyServer
from nsde_policy.errors import ConfigError, RemotePlanningError, RemoteTimeoutError
from nsde_policy.inference.spec import Plan
from tests.helpers.policy_servers import (
    CALIBRATION,
    SPEC,
    STATES,
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


@pytest.fixture(scope="module")
def house() -> Iterator[Served]:
    with served(LinearPlanner(), patience_s=1.0, max_clients=8, deadline_s=5.0) as running:
        yield running


@pytest.fixture(autouse=True)
def a_good_client_is_served_afterwards(house: Served) -> Iterator[None]:
    """After whatever a test did to the house."""
    yield
    assert_serves(house)


def test_a_greeting_tells_the_version_the_spec_and_the_limits(house: Served):
    with house.line() as line:
        line.send(encode(Hello(PROTOCOL, "test")))
        welcome = decode(line.recv(timeout=5), Welcome)
    assert (welcome.protocol, welcome.spec, welcome.calibration) == (PROTOCOL, SPEC, CALIBRATION)
    assert (welcome.max_message, welcome.max_steps, welcome.deadline_s) == (65_536, 128, 5.0)


def test_a_message_in_a_few_parts_is_one_message(house: Served):
    line = house.greeted()
    packed = request(5)
    line.send([packed[:20], packed[20:21], packed[21:]])
    assert answer(line).id == 5
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
                RemotePlanningError, match="the policy failed; the server's log says why"
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
        with RemotePolicy.connect(house.url) as policy, pytest.raises(RemotePlanningError):
            policy.plan_from(STATES, steps=4, seed=99)
        assert_serves(house)


def test_a_late_plan_is_answered_late_and_its_result_dropped():
    go = threading.Event()
    with served(LinearPlanner(lambda seed: go.wait(10) and None if seed == 99 else None)) as house:
        with RemotePolicy.connect(house.url, deadline_s=0.2, timeout_s=10) as policy:
            with pytest.raises(RemoteTimeoutError, match=r"no plan within 0\.200 s"):
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
