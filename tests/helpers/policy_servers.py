"""Policy servers for tests: a planner with known plans, served in a thread over real sockets."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Array,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    Welcome,
    decode,
    encode,
)
from nsde_policy.deploy.server import policy_server
from nsde_policy.deploy.server.policy_server import PolicyServer
from nsde_policy.deploy.server.settings import ServeSettings
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import Plan, Planner
from tests.helpers import numpy_planner
from tests.helpers.server_threads import ServerThread

SPEC = replace(
    numpy_planner.SPEC,
    first_action_from=(),
    circular=(),
    low=(-1.0,) * 5,
    high=(1.0,) * 5,
    increment_std=(0.1,) * 5,
)
CALIBRATION = Calibration.from_spec(SPEC)
WELCOME = Welcome(replace(SPEC, longest_chunk=128).to_json(), CALIBRATION.to_json(), 1)
STATES = np.arange(10, dtype=np.float32).reshape(2, 5) / 7


class LinearPlanner(Planner):
    """Planner with known plans; `before` is called first and may return another plan."""

    def __init__(self, before: Callable[[int], Any] = lambda seed: None) -> None:
        self.spec, self.before, self.seeds = SPEC, before, list[int]()

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        self.seeds.append(seed)
        if (other := self.before(seed)) is not None:
            return other
        rng = np.random.default_rng(seed)
        path = states[0] + np.cumsum(rng.normal(size=(steps + 1, 5)), axis=0)
        return Plan(actions=path[1:, 3:], states=path)


class BatchPlanner(LinearPlanner):
    """The same planner for batches, which notes the seeds of each; `before` may fail a whole batch."""

    largest_batch: int | None = None

    def __init__(self, before: Callable[[int], Any] = lambda seed: None) -> None:
        super().__init__(before)
        self.batches = list[list[int]]()

    def plan_rows(
        self,
        states: Sequence[np.ndarray],
        *,
        steps: int,
        seeds: Sequence[int],
        candidates: int | None = None,
    ) -> list[Plan]:
        self.batches.append([*seeds])
        return super().plan_rows(states, steps=steps, seeds=seeds)


class RunningServer(ServerThread):
    """A running policy server."""

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def connect(self, token: str | None = None, *, path: str = "/", **options: Any) -> ClientConnection:
        """Open a websocket without sending a greeting."""
        if token is not None:
            options["additional_headers"] = {"Authorization": f"Bearer {token}"}
        url = f"{self.url}{path}"
        return connect(url, compression=None, proxy=None, open_timeout=5, close_timeout=0.2, **options)

    def connect_and_greet(self, token: str | None = None) -> ClientConnection:
        connection = self.connect(token)
        connection.__enter__()
        connection.send(encode(Hello(PROTOCOL, "test")))
        connection.recv(timeout=5)
        return connection

    def open_socket(self, data: bytes = b"") -> socket.socket:
        """Open a TCP socket and send `data`."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        sock.sendall(data)
        return sock


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def encode_request(*, states: np.ndarray = STATES, **changes: Any) -> bytes:
    values: dict[str, Any] = {"steps": 4, "seed": 7, "candidates": 1, "deadline_s": 5.0, **changes}
    return encode(PlanRequest(Array.pack(states), **values))


@contextmanager
def serve_in_thread(
    planner: Planner,
    *,
    calibration: Calibration | None = None,
    patience_s: float = 5.0,
    longest_plan: int | None = 128,
    **options: Any,
) -> Iterator[RunningServer]:
    """Run a server in a thread, on a free port; with `longest_plan`, it plans more than sessions need."""
    settings = ServeSettings(**{"port": 0, "deadline_s": 5.0, **options})
    running = RunningServer()
    with pytest.MonkeyPatch.context() as patch:
        if longest_plan is not None:
            longest = min(planner.spec.longest_chunk or longest_plan, longest_plan)
            patch.setattr(policy_server, "compute_longest_plan", lambda spec: longest)
        server = PolicyServer(planner, settings, calibration=calibration)
    server.patience_s = patience_s
    with running.run(server):
        yield running


def assert_server_works(running: RunningServer, **options: Any) -> None:
    seed = 11
    wanted = LinearPlanner().plan_from(STATES, steps=6, seed=seed)
    with RemotePolicy.connect(running.url, timeout_s=10, deadline_s=5, **options) as policy:
        plan = policy.plan_from(STATES, steps=6, seed=seed)
    assert plan.actions.tobytes() == wanted.actions.tobytes()
    assert plan.states.tobytes() == wanted.states.tobytes()


def receive_reply(connection: Any) -> PlanReply | Refusal:
    return decode(connection.recv(timeout=10), PlanReply | Refusal)


def get_health(running: RunningServer) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/healthz", timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
