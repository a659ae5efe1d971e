"""Attacks on `serve`, `play` and `RemotePolicy`: damaged messages, tokens, origins, floods, slow readers."""

import itertools
import json
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_in_threads

from attacks._servers import (
    SPEC,
    STATES,
    UPGRADE,
    WalkPlanner,
    check_plans,
    connect_to,
    open_socket,
    run_policy_server,
    run_viewer,
    wait_until,
)
from attacks.result import AttackResult
from nsde_policy import __version__
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Array,
    Hello,
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

TOKEN = "correct-horse-battery"
HELLO = encode(Hello(PROTOCOL, "attack"))
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
    """Run all attacks on messages; `scale` 1 takes about four minutes on two cores."""
    rng = random.Random(seed)
    yield attack_requests(max(1, round(2500 * scale)), rng)
    yield attack_replies(max(1, round(500 * scale)), rng)
    yield attack_commands(max(1, round(1000 * scale)), rng)
    yield attack_server_access()
    yield attack_viewer_access()
    yield from attack_with_pending_connections(max(20, round(600 * scale)))
    yield attack_with_slow_readers(max(1, round(16 * min(scale, 1))))


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


def add_internal_errors(result: AttackResult, events: Iterable[dict[str, Any]]) -> AttackResult:
    """Count errors that a server logged as bugs."""
    result.bugs += [
        f"the server logged {event}" for event in events if event["event"] in ("error", "transport")
    ]
    return result


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


def expect(result: AttackResult, what: str, expected: bool, action: Callable[[], Any]) -> None:
    """Count an attempt to connect: it must succeed or fail as expected."""
    try:
        action()
        admitted = True
    except (InvalidHandshake, ConnectionClosed, PermissionError):
        admitted = False
    except Exception as error:
        result.bugs.append(f"{what}: {error!r:.200}")
        return
    if admitted != expected:
        result.bugs.append(f"{what}: {'admitted' if admitted else 'refused'}, expected the opposite")
    else:
        result.refused += not admitted
        result.survived += admitted


def attack_server_access() -> AttackResult:
    """Try wrong tokens and origins on a policy server."""
    result = AttackResult("messages: token and origin of serve")
    right = f"Bearer {TOKEN}"
    wrong = [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        right.lower(),
        right.upper(),
        right[:-1],
        right + "x",
        right + " ",
    ]
    wrong += [
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}\u00e9",
        "Bearer " + "a" * 4000,
        "Bearer null",
        f"bearer {TOKEN}",
    ]
    wrong += [f"Bearer {TOKEN},{TOKEN}", f"Bearer\t{TOKEN}", f"Bearer  {TOKEN}", "Bearer *", "Bearer %00"]
    origins = ["null", "http://127.0.0.1", "https://evil.example", "file://", "http://localhost:{port}"]
    with run_policy_server(token=TOKEN) as port:

        def enter(origin: str | None = None, headers: Iterable[tuple[str, str]] = ()) -> None:
            with connect_to(port, origin=origin, additional_headers=list(headers)) as line:
                line.send(HELLO)
                line.recv(timeout=10)

        for given in wrong:
            trimmed = given.strip() == right
            expect(
                result, f"token {given!r:.60}", trimmed, lambda g=given: enter(headers=[("Authorization", g)])
            )
        expect(result, "no token", False, enter)
        twice = [("Authorization", right), ("Authorization", right)]
        expect(result, "two tokens", False, lambda: enter(headers=twice))
        allowed = [("Authorization", right)]
        for origin in origins:
            text = origin.format(port=port)
            expect(result, f"origin {text}", False, lambda o=text: enter(origin=o, headers=allowed))
        expect(result, "the right token", True, lambda: enter(headers=[("Authorization", right)]))
        if problem := check_plans(port, token=TOKEN):
            result.bugs.append(problem)
    return result


def attack_viewer_access() -> AttackResult:
    """Try wrong tokens, hosts and origins on the page's server."""
    result = AttackResult("messages: token, host and origin of play")

    def get(port: int, path: str, host: str) -> None:
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")
        with open_socket(port, request) as sock:
            status = sock.recv(64).split()[1:2]
        if status != [b"200"]:
            raise PermissionError(status)

    def watch(port: int, path: str, origin: str | None) -> None:
        with connect_to(port, path, origin=origin) as page:
            page.recv(timeout=10)

    tokens = ["", "?token=", f"?token={TOKEN[:-1]}", f"?token={TOKEN}x", f"?token={TOKEN}&token={TOKEN}"]
    tokens += [
        f"?Token={TOKEN}",
        f"?token={TOKEN}%00",
        "?token=%ff",
        "?" + "a=1&" * 99,
        f"?{TOKEN}",
        "?token[]=x",
    ]
    hosts = [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "[",
        "127.0.0.1@evil.example",
    ]
    hosts += ["evil.example:80", "0x7f000001.evil", "localhost\\evil", "[::ffff:8.8.8.8]", "localhost:x"]
    with run_viewer(token=TOKEN) as port:
        here = f"127.0.0.1:{port}"
        for query in tokens:
            for path in ("/", "/healthz"):
                expect(result, f"GET {path}{query}", False, lambda p=path + query: get(port, p, here))
            expect(result, f"/live{query}", False, lambda q=query: watch(port, f"/live{q}", None))
        expect(result, "the right token", True, lambda: get(port, f"/?token={TOKEN}", here))
        expect(result, "the right token", True, lambda: watch(port, f"/live?token={TOKEN}", f"http://{here}"))
    with run_viewer() as port:
        here = f"127.0.0.1:{port}"
        for host in hosts:
            expect(result, f"host {host}", False, lambda h=host: get(port, "/", h))
        for origin in (
            "null",
            "http://evil.example",
            f"http://127.0.0.1:{port + 1}",
            f"ws://{here}",
            "file://",
        ):
            expect(result, f"origin {origin}", False, lambda o=origin: watch(port, "/live", o))
        for path in ("/../pyproject.toml", "/static/../server.py", "/static/%2e%2e/http.py", "//etc/passwd"):
            expect(result, f"GET {path}", False, lambda p=path: get(port, p, here))
        expect(result, "the page", True, lambda: get(port, "/", here))
    return result


def attack_with_pending_connections(count: int) -> Iterator[AttackResult]:
    """Open connections that stop at some point; every newcomer must get in beside them."""
    for name, runner, path in (("serve", run_policy_server, "/"), ("play", run_viewer, "/live")):
        result = AttackResult(f"messages: {name} beside {count} connections that stop")
        with runner(max_clients=8, patience_s=120.0) as port:
            upgrade = UPGRADE.format(path="/" if name == "serve" else "/x", port=port).encode()
            for part in (b"", b"GET / HT", upgrade[:-2], upgrade):
                stopped = list[socket.socket]()
                for number in range(count):
                    stopped.append(open_socket(port, part))
                    if number % max(1, count // 10) == 0:
                        expect(
                            result,
                            f"newcomer beside {part[:20]!r}",
                            True,
                            lambda p=path: enter_normally(port, p),
                        )
                for sock in stopped:
                    sock.close()
        yield result


def enter_normally(port: int, path: str) -> None:
    if path == "/" and (problem := check_plans(port)):
        raise RuntimeError(problem)
    if path != "/":
        with connect_to(port, path) as page:
            page.recv(timeout=10)


def attack_with_slow_readers(count: int) -> AttackResult:
    """Ask for plans without reading the answers; others are served and the slow ones are disconnected."""
    result, events = AttackResult("messages: clients that never read"), list[dict[str, Any]]()
    request = encode(PlanRequest(1, Array.pack(STATES), 128, 7, 10.0))
    frames = [Frame(Opcode.BINARY, data).serialize(mask=True) for data in (HELLO, request)]
    with run_policy_server(events, patience_s=2.0, max_rate=1e6, max_steps=128) as port:
        for _ in range(count):
            sock = open_socket(port, UPGRADE.format(path="/", port=port).encode(), receive_buffer=2048)
            sock.recv(129)
            try:
                sock.sendall(frames[0])
                for _ in itertools.repeat(None, 5000):
                    sock.sendall(frames[1] * 20)
                result.bugs.append("a client that never reads was served without end")
            except OSError:  # the server reads no more, then disconnects
                problem = check_plans(port)
                result.bugs += [problem] if problem else []
                result.survived += not problem
            sock.close()
        if not wait_until(lambda: sum(e["event"] == "disconnected" for e in events) >= count):
            result.bugs.append("clients that never read stay connected")
    return add_internal_errors(result, events)
