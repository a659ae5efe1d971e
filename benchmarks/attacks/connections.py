"""Attacks on connections to `serve` and `play`: tokens, origins, connections that stop, slow readers."""

import itertools
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.frames import Frame, Opcode

from attacks._servers import (
    HELLO,
    STATES,
    UPGRADE,
    add_internal_errors,
    check_plans,
    connect_to,
    open_socket,
    run_policy_server,
    run_viewer,
    wait_until,
)
from attacks.result import AttackResult
from nsde_policy.deploy.protocol import Array, PlanRequest, encode

TOKEN = "correct-horse-battery"


def run(scale: float, seed: int) -> Iterator[AttackResult]:
    """Run all attacks on connections, which do not depend on the seed."""
    yield attack_server_access()
    yield attack_viewer_access()
    yield from attack_with_pending_connections(max(20, round(600 * scale)))
    yield attack_with_slow_readers(max(1, round(16 * min(scale, 1))))


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
    result = AttackResult("connections: token and origin of serve")
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
    result = AttackResult("connections: token, host and origin of play")

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
        result = AttackResult(f"connections: {name} beside {count} connections that stop")
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
    result, events = AttackResult("connections: clients that never read"), list[dict[str, Any]]()
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
