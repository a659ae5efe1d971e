"""Tests for deploy/server with hostile clients; a normal client is served after each."""

import contextlib
import itertools
import socket
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from nsde_policy.deploy.protocol import PROTOCOL, Hello, PlanReply, encode
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
)
from tests.helpers.server_threads import wait_until

TOKEN = "correct-horse-battery"
HELLO = Frame(Opcode.BINARY, encode(Hello(PROTOCOL, "test"))).serialize(mask=True)
REQUEST = Frame(Opcode.BINARY, encode_request(steps=128)).serialize(mask=True)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with serve_in_thread(LinearPlanner(), patience_s=1.0, max_clients=8, token=TOKEN) as running:
        yield running


@pytest.fixture(autouse=True)
def check_that_the_server_still_works(running: RunningServer) -> Iterator[None]:
    """Serve a normal client after each test."""
    yield
    assert_server_works(running, token=TOKEN)


NAN = encode_request().replace(STATES.tobytes(), np.full((2, 5), np.nan, np.float32).tobytes())
MESSAGES: dict[str, tuple[bytes | str, str | None, int | None]] = {
    "text": ("let me in", "malformed", 1008),
    "not finite": (NAN, "malformed", 1008),
    "nesting": (b"\x91" * 1_000, "malformed", 1008),
    "too large": (b"\x00" * 10_000_000, None, 1009),
    "states of another policy": (encode_request(states=np.zeros((2, 4))), "bad_request", None),
    "a long plan": (encode_request(steps=129), "bad_request", None),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_invalid_message_is_refused(running: RunningServer, name: str):
    sent, code, closes_with = MESSAGES[name]
    with running.connect_and_greet(TOKEN) as line:
        with contextlib.suppress(ConnectionClosed):
            line.send(sent)
        if code is not None:
            refusal = receive_reply(line)
            assert refusal.code == code
            assert "\n" not in refusal.message
        if closes_with is None:
            line.send(encode_request())
            assert isinstance(receive_reply(line), PlanReply), "the connection stays open"
            return
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(timeout=10)
        assert closed.value.rcvd is None or closed.value.rcvd.code == closes_with


def test_client_of_another_protocol_is_refused(running: RunningServer):
    with running.connect(TOKEN) as line:
        line.send(encode(Hello(PROTOCOL + 1, "9.9")))
        refusal = msgspec.msgpack.decode(line.recv(timeout=10))
        assert {*refusal} == {"kind", "id", "code", "message"}, "as clients of protocol 3 read it"
        assert (refusal["code"], refusal["id"]) == ("wrong_version", None)
        assert f"protocol {PROTOCOL} " in refusal["message"]
        assert f"the client {PROTOCOL + 1} (nsde-policy 9.9); install one version" in refusal["message"]
        with pytest.raises(ConnectionClosed):
            line.recv(timeout=5)


@pytest.mark.parametrize(
    ("path", "values", "options", "status"),
    [
        ("/admin", [f"Bearer {TOKEN}"], {}, 404),
        ("/", [f"Bearer {TOKEN}"], {"origin": "http://evil.example"}, 403),
        ("/", [], {}, 401),
        ("/", [TOKEN], {}, 401),
        ("/", [f"Bearer {TOKEN}x"], {}, 401),
        ("/", ["Bearer \xff\xfe"], {}, 401),
        ("/", [f"Bearer {TOKEN}", "Bearer x"], {}, 401),
    ],
)
def test_other_paths_web_pages_and_wrong_tokens_are_refused(
    running: RunningServer, path: str, values: list[str], options: dict[str, Any], status: int
):
    headers = [("Authorization", value) for value in values]
    with (
        pytest.raises(InvalidStatus) as refused,
        running.connect(None, path=path, additional_headers=headers, **options),
    ):
        pass
    assert refused.value.response.status_code == status
    assert get_health(running)[0] == 200, "which needs no token"


SILENT = {
    "nothing": b"",
    "no greeting": UPGRADE,
    "half a message": UPGRADE + HELLO + REQUEST[:20],
}


@pytest.mark.parametrize("name", SILENT)
def test_clients_that_send_something_else_or_stop_are_disconnected_and_block_no_other(name: str):
    with serve_in_thread(LinearPlanner(), patience_s=0.5, max_clients=20) as running:
        crowd = [running.open_socket() for _ in range(15)]
        for sock in crowd:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(SILENT[name])
        assert_server_works(running)
        for sock in crowd:
            sock.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(65_536):
                    pass
            sock.close()


def test_client_that_does_not_read_is_disconnected():
    """It requests long plans and reads no reply: the server stops reading, then disconnects."""
    with serve_in_thread(LinearPlanner(), patience_s=0.5) as running:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(("127.0.0.1", running.port))
        sock.sendall(UPGRADE)
        assert b"101 Switching" in sock.recv(129)
        sock.sendall(HELLO)
        sock.settimeout(20)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            deque(map(sock.sendall, itertools.repeat(REQUEST)), maxlen=0)
        sock.close()
        running.wait_for("disconnected")
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
