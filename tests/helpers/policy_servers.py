"""Real policy servers for tests: a planner of known answers, served in a thread, spoken to over sockets."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection, connect

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    decode_answer,
    encode,
)
from nsde_policy.deploy.server.config import ServeSettings
from nsde_policy.deploy.server.server import PolicyServer
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import Plan, Planner, PolicySpec
from tests.helpers.server_threads import run_in_thread

SPEC = PolicySpec(
    obs_dim=3,
    act_dim=2,
    history=2,
    chunk=4,
    longest_chunk=0,
    first_action_from=(),
    circular=(),
    low=(-1.0,) * 5,
    high=(1.0,) * 5,
    increment_std=(0.1,) * 5,
)
CALIBRATION = Calibration.from_spec(SPEC)
STATES = np.arange(10, dtype=np.float32).reshape(2, 5) / 7


class LinearPlanner:
    """Answers that anybody can work out; `before` is what happens first."""

    def __init__(self, before: Callable[[int], Any] = lambda seed: None) -> None:
        self.spec, self.before, self.seeds = SPEC, before, list[int]()

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        self.seeds.append(seed)
        if (odd := self.before(seed)) is not None:
            return odd
        rng = np.random.default_rng(seed)
        path = states[0] + np.cumsum(rng.normal(size=(steps + 1, 5)), axis=0)
        return Plan(actions=path[1:, 3:], states=path)


@dataclass
class Served:
    """A server that runs, and what it logged."""

    port: int
    server: PolicyServer
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def named(self, event: str) -> list[dict[str, Any]]:
        return [found for found in self.events if found["event"] == event]

    def wait_for(self, event: str, count: int = 1, **facts: Any) -> list[dict[str, Any]]:
        """The events of that name, once there are so many."""

        def found() -> list[dict[str, Any]]:
            return [e for e in self.named(event) if facts.items() <= e.items()]

        until(lambda: len(found()) >= count, f"{count} × {event} {facts}: {self.events}")
        return found()

    def line(self, **options: Any) -> ClientConnection:
        """A websocket to it, without a word said."""
        return connect(self.url, compression=None, proxy=None, open_timeout=5, close_timeout=0.2, **options)

    def greeted(self) -> ClientConnection:
        line = self.line()
        line.__enter__()
        line.send(encode(Hello(PROTOCOL, "test")))
        line.recv(timeout=5)
        return line

    def raw(self, data: bytes = b"") -> socket.socket:
        """A bare socket to it that has sent `data`."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        sock.sendall(data)
        return sock


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def until(true: Callable[[], bool], what: str, patience_s: float = 10.0) -> None:
    """Wait for something that has to come; a test fails where it does not."""
    ends = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < ends, f"never came: {what}"
        time.sleep(0.005)


def request(number: int = 1, **changes: Any) -> bytes:
    values: dict[str, Any] = {"states": STATES, "steps": 4, "seed": 7, "deadline_s": 5.0, **changes}
    return encode(PlanRequest(id=number, **values))


@contextmanager
def served(planner: Planner, *, calibration: Calibration | None = None, **options: Any) -> Iterator[Served]:
    """A server in a thread, on a free port."""
    events: list[dict[str, Any]] = []

    def log(event: str, **facts: Any) -> None:
        events.append({"event": event, **facts})

    settings = ServeSettings(**{"port": 0, "deadline_s": 5.0, **options})
    server = PolicyServer(planner, settings, log, calibration=calibration)
    with run_in_thread(server) as port:
        yield Served(port, server, events)


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
