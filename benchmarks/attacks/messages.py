"""Attacks on `serve`, `play` and `RemotePolicy` with damaged messages."""

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_in_threads

from attacks._servers import (
    HELLO,
    SPEC,
    STATES,
    WalkPlanner,
    add_internal_errors,
    check_plans,
    connect_to,
    run_policy_server,
    run_viewer,
)
from attacks.result import AttackResult
from nsde_policy import __version__
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Array,
    PlanReply,
    PlanRequest,
    Refusal,
    Welcome,
    check_plan,
    decode,
    encode,
)
from nsde_policy.errors import NsdePolicyError, ProtocolError
from nsde_policy.inference.calibration import Calibration
from nsde_policy.viewer.messages import parse_message

PLAN = encode(PlanRequest(1, Array.pack(STATES), 4, 7, 10.0))
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


def run(scale: float, seed: int) -> Iterator[AttackResult]:
    """Run all attacks with damaged messages."""
    rng = random.Random(seed)
    yield attack_requests(max(1, round(2500 * scale)), rng)
    yield attack_replies(max(1, round(500 * scale)), rng)
    yield attack_commands(max(1, round(1000 * scale)), rng)


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


def attack_requests(count: int, rng: random.Random) -> AttackResult:
    """Send damaged greetings and requests to a policy server."""
    result, events = AttackResult("messages: damaged requests to serve"), list[dict[str, Any]]()
    with run_policy_server(events, max_rate=1e6) as port:
        line: ClientConnection | None = None
        for number in range(count):
            message = rng.choice((damage, replace_field))(HELLO if number % 5 == 0 else PLAN, rng)
            if number % 5 == 0 or line is None:
                line = connect_to(port).__enter__()
                if number % 5:
                    line.send(HELLO)
                    line.recv(timeout=10)
            try:
                line.send(message)
                answer = decode(line.recv(timeout=15), Welcome | PlanReply | Refusal)
                refused = isinstance(answer, Refusal)
                result.refused += refused
                result.survived += not refused
                if not (refused and answer.id is not None) and not isinstance(answer, PlanReply):
                    line = close(line)
            except ConnectionClosed as error:
                code = error.rcvd.code if error.rcvd else None
                if code in CLOSED_ON_PURPOSE:
                    result.refused += 1
                else:
                    result.bugs.append(f"{message.hex()[:200]}: closed with {code}, expected a refusal")
                line = close(line)
            except (TimeoutError, NsdePolicyError) as error:
                result.bugs.append(f"{message.hex()[:200]}: {error!r:.200}, expected an answer")
                line = close(line)
            if number % 250 == 249 and (problem := check_plans(port)):
                result.bugs.append(f"after {number + 1} messages {problem}")
    return add_internal_errors(result, events)


def close(line: ClientConnection) -> None:
    with suppress(OSError):
        line.socket.shutdown(socket.SHUT_RDWR)
    line.close()


def attack_replies(count: int, rng: random.Random) -> AttackResult:
    """Answer a client with damaged plans and greetings."""
    result = AttackResult("messages: damaged replies to RemotePolicy")
    calibration = Calibration.from_spec(SPEC)
    limits = {"version": __version__, "max_message": 65_536, "max_steps": 8, "deadline_s": 1.0}
    welcome = encode(Welcome.build(SPEC, calibration, protocol=PROTOCOL, **limits))
    plan = encode(PlanReply.pack(1, WalkPlanner().plan_from(STATES, steps=4, seed=7)))
    replies: dict[str, Any] = {"welcome": welcome, "plan": plan}
    with answer_with(replies) as url:
        for number in range(count):
            kind = "welcome" if number % 4 == 0 else "plan"
            data = rng.choice((damage, replace_field))({"welcome": welcome, "plan": plan}[kind], rng)
            replies.update({"welcome": welcome, "plan": plan, kind: data})
            try:
                with RemotePolicy.connect(url, deadline_s=1.0, timeout_s=15.0) as policy:
                    found = policy.plan_from(STATES, steps=4, seed=7)
                check_plan(found, policy.spec, 4)
                result.survived += 1
            except NsdePolicyError as error:
                result.refused += "\n" not in str(error)
                if "\n" in str(error):
                    result.bugs.append(f"{data.hex()[:200]}: an error of several lines, {error!r:.200}")
            except BaseException as error:
                result.bugs.append(f"{kind} {data.hex()[:200]}: {error!r:.200}, expected a typed error")
    return result


@contextmanager
def answer_with(replies: dict[str, bytes]) -> Iterator[str]:
    """Run a server that answers every greeting and request with the same messages; yield its address."""

    def answer(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            connection.recv(timeout=15)
            connection.send(replies["welcome"])
            for _ in connection:
                connection.send(replies["plan"])

    with serve_in_threads(answer, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def attack_commands(count: int, rng: random.Random) -> AttackResult:
    """Send damaged commands to the page's server, and check that its control loop continues."""
    result, events = AttackResult("messages: damaged commands to play"), list[dict[str, Any]]()
    with run_viewer(events, max_rate=1e6) as port:
        for start in range(0, count, 9):
            with connect_to(port, "/live") as page:
                for _ in range(min(9, count - start)):
                    text = damage_command(rng)
                    try:
                        page.send(text)
                    except ConnectionClosed as error:
                        closed_by_server(result, text, error)
                        break
                    is_valid = is_command(text)
                    result.refused += not is_valid
                    result.survived += is_valid
                try:
                    page.send('{"do": "pause", "on": false}')
                    while json.loads(page.recv(timeout=20))["type"] != "frame":
                        pass
                except ConnectionClosed as error:
                    closed_by_server(result, "commands", error)
                except TimeoutError:
                    result.bugs.append("no frame within 20 s after damaged commands")
        with connect_to(port, "/live") as page:
            page.send('{"do": "reset", "seed": 5}')
            while json.loads(page.recv(timeout=20)).get("seed") != 5:
                pass
    return add_internal_errors(result, events)


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
    except ProtocolError:
        return False
    return True


def closed_by_server(result: AttackResult, what: object, error: ConnectionClosed) -> None:
    code = error.rcvd.code if error.rcvd else None
    if code in CLOSED_ON_PURPOSE:
        result.refused += 1
    else:
        result.bugs.append(f"{what!r:.200}: closed with {code}, expected 1007 to 1009")
