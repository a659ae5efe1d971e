"""Tests for deploy/server: replies, health, settings and shutdown."""

import asyncio
import socket
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import PlanReply, Refusal
from nsde_policy.deploy.server.policy_server import PolicyServer
from nsde_policy.deploy.server.settings import ServeSettings, compute_longest_plan
from nsde_policy.errors import ConfigError, RemoteError
from nsde_policy.interface.planner import Plan
from tests.helpers.policy_servers import (
    SPEC,
    STATES,
    LinearPlanner,
    encode_request,
    get_health,
    receive_reply,
    serve_in_thread,
)
from tests.helpers.server_threads import wait_until

TOKEN = "correct-horse-battery"


@pytest.mark.parametrize(
    "failure",
    [
        *(ValueError("secret/path.py line 3"), SystemExit(3)),
        *(Plan(np.full((4, 2), np.nan)), Plan(np.zeros((3, 2)))),
    ],
    ids=repr,
)
def test_planner_error_is_logged_by_the_server_and_hidden_from_the_client(failure: BaseException | Plan):
    def fail(seed: int) -> Plan | None:
        if isinstance(failure, BaseException) and seed == 99:
            raise failure
        return failure if seed == 99 else None

    with serve_in_thread(LinearPlanner(fail)) as running:
        with RemotePolicy.connect(running.url) as policy:
            with pytest.raises(RemoteError, match="the policy failed; see the server's log") as told:
                policy.plan_from(STATES, steps=4, seed=99)
            assert policy.plan_from(STATES, steps=4, seed=1).actions.shape == (4, 2)
        assert "secret" not in str(told.value)
        (event,) = running.find_events("the policy failed")
        assert (type(failure).__name__ if isinstance(failure, BaseException) else "PlanError") in event


def test_server_deadline_limits_requests_and_expired_ones_are_not_started():
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None if seed == 99 else None
    with serve_in_thread(planner, deadline_s=1.0) as running:
        slow, other = running.connect_and_greet(), running.connect_and_greet()
        slow.send(encode_request(seed=99, deadline_s=1000.0))
        wait_until(lambda: planner.seeds == [99], "the slow one has begun")
        other.send(encode_request(seed=50, deadline_s=1000.0))
        for line in (slow, other):
            refusal = receive_reply(line)
            assert isinstance(refusal, Refusal)
            assert refusal.code == "late"
        go.set()
        other.send(encode_request(seed=51))
        assert isinstance(receive_reply(other), PlanReply)
        assert planner.seeds == [99, 51]
        slow.close()
        other.close()


def test_health_needs_no_token_and_counts_plans():
    with serve_in_thread(LinearPlanner(), token=TOKEN) as running:
        assert get_health(running)[1]["planned"] == 0
        with running.connect_and_greet(TOKEN) as line:
            line.send(encode_request())
            assert isinstance(receive_reply(line), PlanReply)
            code, facts = get_health(running)
            assert (code, facts["clients"], facts["planned"]) == (200, 1, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "0.0.0.0"}, "accepts connections from other machines, which needs a token"),
        ({"host": ""}, "needs a token"),
        ({"host": "localhost.evil.example"}, "needs a token"),
        ({"token": "twenty characters with blanks"}, "no blanks"),
        ({"token": ""}, "got 0: make one"),
        ({"port": 65536}, "need port <= 65535, got 65536"),
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


@pytest.mark.parametrize(("longest", "steps"), [(0, 6), (16, 10), (8, 8)])
def test_the_longest_plan_fits_the_chunk(longest: int, steps: int):
    assert compute_longest_plan(replace(SPEC, longest_chunk=longest)) == steps


def test_session_keeps_within_the_longest_plan():
    with (
        serve_in_thread(LinearPlanner(), longest_plan=None) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as policy,
    ):
        with policy.session(rate_hz=10, policy_hz=10, plan_ahead=True) as session:
            session.step([0.1, 0.2, 0.3])
        with pytest.raises(ConfigError, match="a plan of this policy has at most 6 commands"):
            policy.session(rate_hz=10, policy_hz=10, chunk=7)
        assert get_health(running)[1]["bad_request"] == 0


def test_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PolicyServer(LinearPlanner(), ServeSettings(port=port))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: another program"):
            asyncio.run(server.run(lambda port: None))


def test_stop_answers_running_requests():
    go, planner = threading.Event(), LinearPlanner()
    planner.before = lambda seed: go.wait(10) and None
    with serve_in_thread(planner) as running:
        line = running.connect_and_greet()
        line.send(encode_request())
        wait_until(lambda: bool(planner.seeds), "it has begun")
        running.server.stop()
        running.wait_for("1 requests in flight")
        go.set()
        assert isinstance(receive_reply(line), PlanReply)
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(timeout=10)
        assert closed.value.rcvd.code == 1001
