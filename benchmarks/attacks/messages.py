"""Damaged messages to `serve` and `play`; the tests hold access, floods and slow clients."""

import json
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed

from attacks._attempts import REFUSED, SURVIVED, Attack, Attempt
from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.deploy.protocol import PROTOCOL, Hello, PlanReply, Refusal, Welcome, decode, encode
from nsde_policy.errors import RemoteError
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import load_runners
from tests.helpers.policy_servers import LinearPlanner, RunningServer, encode_request, serve_in_thread
from tests.helpers.viewer_servers import RunningViewer, run_viewer

HELLO, PLAN = encode(Hello(PROTOCOL, "attack")), encode_request()
COMMANDS = (
    '{"do": "set_control", "name": "alpha", "value": 1.5}',
    '{"do": "drag", "panel": 0, "what": "agent", "x": 20, "y": 30, "angle": 1.0}',
    '{"do": "select_methods", "methods": ["shipped"]}',
    '{"do": "reset", "seed": 100003}',
    '{"do": "scrub", "period": 3}',
    '{"do": "pause", "on": false}',
)
STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, -(2**63), 1e308, float("nan"), float("inf"), "", "x" * 5000, b"", b"\xff" * 99,
    [], {}, [[[]]], {"kind": "plan"}, {"dtype": "O", "shape": [1, 1], "data": b""}, "../../etc/passwd",
)  # fmt: skip
CLOSED_ON_PURPOSE = {1002, 1003, 1007, 1008, 1009}
"""Close codes that say that the client is at fault; 1011 would be a bug of the server."""


def prepare(folder: Path, stack: ExitStack) -> Attack:
    """Start both servers and send them damaged messages by turns."""
    server = stack.enter_context(serve_in_thread(LinearPlanner()))
    app = PlayApp(load_runners([SHIPPED_POLICY]), seed=100_000)
    stack.callback(app.close, 5.0)
    page = stack.enter_context(run_viewer(app))

    def attack(rng: random.Random, number: int) -> Attempt:
        if number % 2:
            texts = [damage_command(rng) for _ in range(9)]
            return Attempt("commands to play", repr(texts), lambda: check(page, send_commands(page, texts)))
        greet = rng.random() < 0.8
        message = rng.choice((damage, replace_field))(PLAN if greet else HELLO, rng)
        what = message.hex()[:200]
        return Attempt(
            "requests to serve", what, lambda: check(server, send_message(server, message, greet=greet))
        )

    return attack


def check(running: RunningServer | RunningViewer, answer: str) -> str:
    """Return the answer, or an internal error that the server has logged since the last one."""
    logged = [event for event in running.events if event["event"] in ("error", "transport")]
    running.events.clear()
    return f"the server logged {logged}" if logged else answer


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return a message with flipped, missing, repeated or random bytes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(found) + 1)
        kind = rng.randrange(5)
        if kind == 0 and found:
            found[place % len(found)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[place : place + rng.randrange(1, 9)]
        elif kind == 2:
            found[place:place] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 3:
            del found[place:]
        else:
            found[place : place + 1] = rng.choice((b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 99, b"\x00"))
    return bytes(found)


def replace_field(data: bytes, rng: random.Random) -> bytes:
    """Return a message in which one field, at any depth, has a strange value or is new."""
    values = msgspec.msgpack.decode(data)
    inside = rng.choice([values, *(value for value in values.values() if isinstance(value, dict))])
    inside[rng.choice([*inside, "more"])] = rng.choice(STRANGE)
    return msgspec.msgpack.encode(values)


def send_message(server: RunningServer, message: bytes, *, greet: bool) -> str:
    """Send a message; the server must answer it, refuse it, or close the connection with a reason."""
    with server.connect() as line:
        if greet:
            line.send(HELLO)
            line.recv(timeout=15)
        try:
            line.send(message)
            answer = decode(line.recv(timeout=15), Welcome | PlanReply | Refusal)
            return REFUSED if isinstance(answer, Refusal) else SURVIVED
        except ConnectionClosed as error:
            return judge_closing(error)
        except RemoteError as error:
            return f"an answer that cannot be read: {error}"


def judge_closing(error: ConnectionClosed) -> str:
    """Return whether a server closed a connection for a reason."""
    code = error.rcvd.code if error.rcvd else None
    return REFUSED if code in CLOSED_ON_PURPOSE else f"closed with {code}, expected a refusal"


def send_commands(running: RunningViewer, texts: list[str | bytes]) -> str:
    """Send commands to the page's server, and check that its control loop continues."""
    with running.connect() as page:
        try:
            for text in texts:
                page.send(text)
            page.send('{"do": "pause", "on": false}')
            while json.loads(page.recv(timeout=20))["type"] != "frame":
                pass
        except ConnectionClosed as error:
            return judge_closing(error)
    return SURVIVED


def damage_command(rng: random.Random) -> str | bytes:
    """Return a damaged command, as text or bytes."""
    command = rng.choice(COMMANDS)
    if rng.random() < 0.5:
        data = damage(command.encode(), rng)[:1000]
        return data if rng.random() < 0.5 else data.decode("latin-1")[:400]
    values = json.loads(command)
    values[rng.choice([*values, "more"])] = rng.choice(STRANGE)
    return json.dumps(values, default=repr)[:900]  # NaN and Infinity are no JSON
