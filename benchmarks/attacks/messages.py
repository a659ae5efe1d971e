"""Attacks on `serve` and `play` with damaged messages; tests hold access, floods and slow clients."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from attacks.result import REFUSED, SURVIVED, Result, number_attempts
from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Hello,
    PlanReply,
    Refusal,
    Welcome,
    decode,
    encode,
)
from nsde_policy.errors import RemoteError
from nsde_policy.viewer.messages import parse_message
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import load_runners
from tests.helpers.policy_servers import (
    LinearPlanner,
    RunningServer,
    assert_server_works,
    encode_request,
    serve_in_thread,
)
from tests.helpers.viewer_servers import run_viewer

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


def run(seconds: float, seed: int) -> Result:
    """Run all attacks with damaged messages."""
    result, rng = Result(), random.Random(seed)
    attack_server(result, seconds / 2, rng)
    attack_page(result, seconds / 2, rng)
    return result


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
    """Return a message in which one field, at any depth, has a strange value, or is missing, or is new."""
    values = msgspec.msgpack.decode(data)
    inside = rng.choice([values, *(value for value in values.values() if isinstance(value, dict))])
    name = rng.choice([*inside, "more"])
    if rng.random() < 0.1:
        inside.pop(name, None)
    else:
        inside[name] = rng.choice(STRANGE)
    return msgspec.msgpack.encode(values)


def count_events(result: Result, row: str, events: list[dict[str, Any]]) -> None:
    """Count internal errors that a server logged as bugs."""
    for event in events:
        if event["event"] in ("error", "transport"):
            result.count(row, f"{event}", "the server logged")


def attack_server(result: Result, seconds: float, rng: random.Random) -> None:
    """Send damaged greetings and requests to a policy server; it must go on to serve others."""
    row = "messages: requests to serve"
    with serve_in_thread(LinearPlanner()) as running:
        for number in number_attempts(seconds):
            first = number % 5 == 0
            message = rng.choice((damage, replace_field))(HELLO if first else PLAN, rng)
            with open_connection(running, greet=not first) as line:
                result.count(row, send_damaged(line, message), message.hex()[:200])
            if number % 100 == 99:
                assert_server_works(running)
    count_events(result, row, running.events)


@contextmanager
def open_connection(running: RunningServer, *, greet: bool) -> Iterator[ClientConnection]:
    """Open a connection to a policy server, and greet it."""
    with running.connect() as line:
        if greet:
            line.send(HELLO)
            line.recv(timeout=15)
        yield line


def send_damaged(line: ClientConnection, message: bytes) -> str:
    """Send a message; the server must answer it, refuse it, or close the connection with a reason."""
    try:
        line.send(message)
        answer = decode(line.recv(timeout=15), Welcome | PlanReply | Refusal)
        return REFUSED if isinstance(answer, Refusal) else SURVIVED
    except ConnectionClosed as error:
        return judge_closing(error)
    except (TimeoutError, RemoteError) as error:
        return f"{error!r:.200}, expected an answer"


def judge_closing(error: ConnectionClosed) -> str:
    """Return whether a server closed a connection for a reason."""
    code = error.rcvd.code if error.rcvd else None
    return REFUSED if code in CLOSED_ON_PURPOSE else f"closed with {code}, expected a refusal"


def attack_page(result: Result, seconds: float, rng: random.Random) -> None:
    """Send damaged commands to the page's server, and check that its control loop continues."""
    row = "messages: commands to play"
    app = PlayApp(load_runners([SHIPPED_POLICY]), seed=100_000)
    with run_viewer(app) as running:
        for _ in number_attempts(seconds):
            texts = [damage_command(rng) for _ in range(9)]
            with running.connect() as page:
                try:
                    for text in texts:
                        page.send(text)
                        result.count(row, SURVIVED if is_command(text) else REFUSED, text)
                    page.send('{"do": "pause", "on": false}')
                    while json.loads(page.recv(timeout=20))["type"] != "frame":
                        pass
                except ConnectionClosed as error:
                    result.count(row, judge_closing(error), texts)
                except TimeoutError:
                    result.count(row, "no frame within 20 s", texts)
    app.close(5.0)
    count_events(result, row, running.events)


def damage_command(rng: random.Random) -> str | bytes:
    """Return a damaged command, as text or bytes."""
    command = rng.choice(COMMANDS)
    if rng.random() < 0.5:
        data = damage(command.encode(), rng)[:1000]
        return data if rng.random() < 0.5 else data.decode("latin-1")[:400]
    values = json.loads(command)
    values[rng.choice([*values, "more"])] = rng.choice(STRANGE)
    return json.dumps(values, default=repr)[:900]  # NaN and Infinity are no JSON


def is_command(text: str | bytes) -> bool:
    """Return whether a command is valid, so that the server answers it with a notice or obeys."""
    try:
        parse_message(text)
    except RemoteError:
        return False
    return True
