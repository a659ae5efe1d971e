"""Servers of the package in a thread, and clients of them, for attacks."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection, connect

from attacks.result import AttackResult
from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import PROTOCOL, Hello, encode
from nsde_policy.deploy.server.config import ServeSettings
from nsde_policy.deploy.server.server import PolicyServer
from nsde_policy.inference.spec import Plan, PolicySpec
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.launch import load_runners
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import PolicyRunner
from nsde_policy.viewer.server import ViewerServer

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
STATES = np.arange(10, dtype=np.float32).reshape(2, 5) / 7
HELLO = encode(Hello(PROTOCOL, "attack"))
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class WalkPlanner:
    """Planner whose plans are random walks that depend on the seed only."""

    spec = SPEC

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        path = states[0] + np.cumsum(np.random.default_rng(seed).normal(size=(steps + 1, 5)), axis=0)
        return Plan(actions=path[1:, 3:], states=path)


@contextmanager
def run_in_thread(server: PolicyServer | ViewerServer) -> Iterator[int]:
    """Run a server and yield its port; raise `RuntimeError` if it does not start or stop."""
    ready, ports = threading.Event(), list[int]()

    def set_port(port: int) -> None:
        ports.append(port)
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(server.run(set_port)), daemon=True)
    thread.start()
    if not ready.wait(60):
        raise RuntimeError("the server did not start")
    try:
        yield ports[0]
    finally:
        server.stop()
        thread.join(60)
        if thread.is_alive():
            raise RuntimeError("the server did not stop")


@contextmanager
def run_policy_server(events: list[dict[str, Any]] | None = None, **options: Any) -> Iterator[int]:
    """Serve random walks on a free port; append what the server logs to `events`."""
    settings = ServeSettings(**{"port": 0, "deadline_s": 10.0, **options})
    server = PolicyServer(WalkPlanner(), settings, _make_log(events))
    with run_in_thread(server) as port:
        yield port


@contextmanager
def run_viewer(
    events: list[dict[str, Any]] | None = None, runners: list[PolicyRunner] | None = None, **options: Any
) -> Iterator[int]:
    """Serve the page of `play` on a free port; append what the server logs to `events`."""
    app = PlayApp(runners or load_runners([SHIPPED_POLICY]), seed=100_000)
    with run_in_thread(
        ViewerServer(app, ViewerSettings(**{"port": 0, **options}), _make_log(events))
    ) as port:
        yield port
    app.close(5.0)


def _make_log(events: list[dict[str, Any]] | None) -> Callable[..., None]:
    def log(event: str, **facts: Any) -> None:
        if events is not None:
            events.append({"event": event, **facts})

    return log


def connect_to(port: int, path: str = "/", **options: Any) -> ClientConnection:
    """Open a websocket to a server on this machine."""
    url = f"ws://127.0.0.1:{port}{path}"
    options = {"compression": None, "proxy": None, "open_timeout": 10, "close_timeout": 0.2} | options
    return connect(url, **options)


def open_socket(port: int, data: bytes = b"", *, receive_buffer: int | None = None) -> socket.socket:
    """Open a TCP connection to a server on this machine and send data."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(10)
    sock.connect(("127.0.0.1", port))
    sock.sendall(data)
    return sock


def check_plans(port: int, *, seed: int = 11, **options: Any) -> str | None:
    """Return what is wrong with the plans that a normal client gets, or None."""
    wanted = WalkPlanner().plan_from(STATES, steps=5, seed=seed)
    try:
        url = f"ws://127.0.0.1:{port}"
        with RemotePolicy.connect(url, deadline_s=10, timeout_s=15, **options) as policy:
            plan = policy.plan_from(STATES, steps=5, seed=seed)
    except Exception as error:
        return f"a normal client got {type(error).__name__}: {error}"
    return None if plan.actions.tobytes() == wanted.actions.tobytes() else "a normal client got another plan"


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    """Wait for a condition; return whether it became true."""
    ends = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.01)
    return True


def add_internal_errors(result: AttackResult, events: Iterable[dict[str, Any]]) -> AttackResult:
    """Count errors that a server logged as bugs."""
    result.bugs += [
        f"the server logged {event}" for event in events if event["event"] in ("error", "transport")
    ]
    return result
