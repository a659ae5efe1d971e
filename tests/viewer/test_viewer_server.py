"""Tests for nsde_policy/viewer/server.py, http.py and loop.py, over real sockets."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from nsde_policy.cli.main import main
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.tasks import get_task
from nsde_policy.viewer.app import App
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.launch import load_runners, make_settings
from nsde_policy.viewer.messages import ClientMessage, SetControl
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.simulation import Simulation
from tests.helpers.policy_servers import wait_until
from tests.helpers.viewer_servers import SEED, SHIPPED_POLICY, RunningViewer, receive, run_viewer, send

TOKEN = "abcdefghijklmnop1234"


@pytest.fixture
def viewer() -> Iterator[RunningViewer]:
    with run_viewer(PlayApp(load_runners([SHIPPED_POLICY]), seed=SEED)) as viewer_server:
        yield viewer_server


class NoisyApp(App):
    """An app without tables, with large and frequent frames; `error` is raised by its next tick."""

    mode = "play"
    period_s = 0.01
    _tables: ClassVar[list[Simulation]] = []

    def __init__(self, size: int = 1_000_000) -> None:
        super().__init__(get_task("pusht"))
        self.ticks, self.size = 0, size
        self.error: Exception | None = None

    def _dispatch(self, message: ClientMessage) -> None:
        pass

    def tick(self) -> bool:
        self.ticks += 1
        if self.error:
            error, self.error = self.error, None
            raise error
        return True

    def state(self) -> dict[str, Any]:
        return {"type": "state"}

    def frame(self) -> dict[str, Any]:
        return {"type": "frame", "ticks": self.ticks, "noise": "x" * self.size}


def get(url: str, **headers: str) -> tuple[int, dict[str, str], str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def is_disconnected(client: ClientConnection) -> bool:
    """Return whether the server closes the connection."""
    try:
        for _ in range(1000):
            client.recv(timeout=20)
    except ConnectionClosed:
        return True
    return False


def close_reason(client: ClientConnection) -> tuple[int, str]:
    """Return code and reason with which the server closes before any message."""
    with client, pytest.raises(ConnectionClosed) as closed:
        client.recv(timeout=20)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


# HTTP


def test_content_security_policy_allows_only_files_of_the_server(viewer: RunningViewer):
    status, headers, body = get(viewer.url)
    assert status == 200
    assert "<canvas" in body
    rules = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert rules["script-src"] == rules["style-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_page_loads_its_files_and_refers_to_no_other_host(viewer: RunningViewer):
    body = get(viewer.url)[2]
    files = re.findall(r"(?:src|href)=\"(/[^\"]+)\"", body)
    assert "/static/style.css" in files
    assert "/static/scene.js" in files
    for path in files:
        status, headers, text = get(viewer.url.rstrip("/") + path)
        assert status == 200
        assert headers["Content-Type"].split(";")[0] in ("text/css", "text/javascript")
        assert headers["X-Content-Type-Options"] == "nosniff"
        body += text
    assert set(re.findall(r"\w+://[^'/$]+", body)) == {"http://www.w3.org"}, "the name of SVG, never fetched"
    assert not re.findall(r"@import|url\(|eval\(", body)


def test_health_reports_timing_of_the_control_loop(viewer: RunningViewer):
    wait_until(lambda: json.loads(get(viewer.url + "healthz")[2])["periods"] > 3, "periods")
    facts = json.loads(get(viewer.url + "healthz")[2])
    assert (facts["status"], facts["clients"]) == ("ok", 0)
    assert {"late_ms", "late_p99_ms", "work_ms"} <= facts.keys()


def test_unknown_paths_are_not_found(viewer: RunningViewer):
    for path in (
        "etc/passwd",
        "../nsde_policy/cli/main.py",
        "index.html",
        "static/index.html",
        "static/../server.py",
        "live/x",
    ):
        assert get(viewer.url + path)[0] == 404


def test_only_get_is_allowed(viewer: RunningViewer):
    for method in ("POST", "PUT", "DELETE"):
        request = urllib.request.Request(viewer.url, method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=20)
        assert refused.value.code in (400, 405), "older versions of websockets say 400"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[", "a b"]
)
def test_foreign_host_names_are_refused_against_dns_rebinding(viewer: RunningViewer, host: str):
    status, _, body = get(viewer.url, Host=host)
    assert status in (400, 403)
    assert "<canvas" not in body


def test_two_host_headers_are_refused(viewer: RunningViewer):
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=20) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in sock.recv(100)


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1", "[::1]:8000", "127.1.2.3"])
def test_local_host_names_are_served_also_through_a_tunnel(viewer: RunningViewer, host: str):
    assert get(viewer.url, Host=host)[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_websockets_of_foreign_origins_are_refused(viewer: RunningViewer, origin: str):
    with pytest.raises(InvalidStatus) as refused, viewer.connect(origin=origin):
        pass
    assert refused.value.response.status_code == 403


def test_websocket_of_the_page_is_accepted(viewer: RunningViewer):
    with viewer.connect(origin=f"http://127.0.0.1:{viewer.port}") as client:
        assert receive(client, "hello")["mode"] == "play"


@pytest.mark.parametrize(
    "query", ["", "?token=", "?token=wrong", f"?token={TOKEN}x", f"?token={TOKEN}&token=x"]
)
def test_token_is_required_if_set(query: str):
    with run_viewer(NoisyApp(10), token=TOKEN) as viewer_server:
        assert get(viewer_server.url + query)[0] == 403
        assert get(viewer_server.url + "healthz" + query)[0] == 403
        assert close_reason(viewer_server.connect(query)) == (4403, "token")
        assert get(viewer_server.url + f"?token={TOKEN}", Host="my-robot.example")[0] == 200
        with viewer_server.connect(f"?token={TOKEN}") as client:
            assert receive(client, "hello")


def test_too_many_query_fields_are_refused():
    query = "?" + "&".join(f"a{k}=1" for k in range(20))
    with run_viewer(NoisyApp(10), token=TOKEN) as viewer_server:
        assert get(viewer_server.url + query)[0] == 403
        assert close_reason(viewer_server.connect(query)) == (4403, "token")
        assert not [event for event in viewer_server.events if event["event"] in ("error", "transport")]


def test_public_address_requires_a_token_and_generates_one():
    with pytest.raises(ConfigError, match="token"):
        ViewerSettings(host="0.0.0.0")
    made = make_settings("0.0.0.0", 8000, None)
    assert made.token is not None
    here, *elsewhere = made.urls(8000)
    assert here == f"http://localhost:8000/?token={made.token}"
    assert not any("localhost" in url or "0.0.0.0" in url for url in elsewhere)
    assert made.token not in repr(made)
    assert make_settings("127.0.0.1", 8000, None).urls(8000) == ["http://127.0.0.1:8000/"]


def test_printed_addresses_work_with_any_token():
    token = "+&/=%#?;'\"<a>+&/="
    with run_viewer(NoisyApp(10), host="0.0.0.0", token=token) as viewer_server:
        addresses = ViewerSettings(host="0.0.0.0", token=token).urls(viewer_server.port)
        assert [get(url)[0] for url in addresses] == [200] * len(addresses)


# Messages


def test_client_receives_hello_state_and_frames(viewer: RunningViewer):
    with viewer.connect() as client:
        hello = json.loads(client.recv(timeout=20))
        assert (hello["type"], [m["name"] for m in hello["methods"]]) == ("hello", ["shipped"])
        state = receive(client, "state")
        assert state["seed"] == SEED
        first = receive(client, "frame")
        later = receive(client, "frame", lambda m: m["last"] > first["last"])  # a message also causes a frame
        assert len(later["panels"][0]["trail"]) == 10
        send(client, "reset", seed=5)
        assert receive(client, "state", lambda m: m["seed"] == 5)
        send(client, "set_control", name="alpha", value=2.5)
        assert receive(client, "state", lambda m: m["controls"]["alpha"] == 2.5)


def test_changes_of_one_client_reach_all_clients(viewer: RunningViewer):
    with viewer.connect() as one, viewer.connect() as other:
        send(one, "pause", on=True)
        assert receive(other, "state", lambda m: m["paused"])


def test_a_rejected_message_is_answered_with_a_notice(viewer: RunningViewer):
    with viewer.connect() as client:
        send(client, "select_methods", methods=["unknown"])
        assert "shipped" in receive(client, "notice")["text"]
        assert receive(client, "frame")


def test_notice_goes_only_to_the_client_that_caused_it(viewer: RunningViewer):
    with viewer.connect() as asked, viewer.connect() as other:
        receive(other, "frame")
        send(asked, "select_methods", methods=["unknown"])
        assert receive(asked, "notice")
        send(other, "pause", on=True)
        while (message := json.loads(other.recv(timeout=20)))["type"] != "state" or not message["paused"]:
            assert message["type"] != "notice"


def test_drag_ends_when_its_client_disconnects(viewer: RunningViewer):
    with viewer.connect() as client:
        receive(client, "frame")
        send(client, "drag", panel=0, what="agent", x=20, y=20)
        receive(client, "frame", lambda m: m["panels"][0]["target"] == [20, 20])
    with viewer.connect() as client:
        assert receive(client, "frame", lambda m: m["panels"][0]["target"] != [20, 20])


# Slow, hostile or too many clients


def test_few_invalid_messages_are_ignored_and_many_disconnect(viewer: RunningViewer):
    with viewer.connect() as client:
        for _ in range(5):
            client.send("{}")
        send(client, "reset", seed=9)
        assert receive(client, "state", lambda m: m["seed"] == 9)
        for _ in range(5):
            client.send(b"\x00\xff garbage")
        assert is_disconnected(client)
    viewer.wait_for("left")
    with viewer.connect() as client:
        assert receive(client, "frame")


def test_repeated_rejected_messages_disconnect(viewer: RunningViewer):
    with viewer.connect() as client:
        for _ in range(9):
            send(client, "select_methods", methods=["unknown"])
            assert "unknown method" in receive(client, "notice")["text"]
        client.send('{"do": "set_control", "name": "gravity", "value": 1}')
        assert is_disconnected(client)
    (left,) = viewer.wait_for("left")
    assert "gravity" in left["why"]


def test_a_huge_message_disconnects_only_its_client(viewer: RunningViewer):
    with viewer.connect() as good, viewer.connect() as bad:
        bad.send("x" * 100_000)
        assert is_disconnected(bad)
        assert receive(good, "frame")


def test_flood_of_messages_is_throttled_without_delaying_the_loop():
    app, rate = NoisyApp(10), 50
    with run_viewer(app, max_rate=rate) as viewer_server, viewer_server.connect() as client:
        receive(client, "frame")
        started, ticks, sent = time.monotonic(), app.ticks, 0
        client.socket.settimeout(0.05)
        try:
            for sent in range(100_000):  # noqa: B007
                client.send('{"do":"step"}')
                if app.ticks - ticks > 100:
                    break
        except (TimeoutError, ConnectionClosed):
            pass
        wait_until(lambda: app.ticks - ticks > 100, "a hundred periods")
        handled, elapsed_s = app.revision, time.monotonic() - started
        assert handled <= rate * (elapsed_s + 1) + 5, f"of {sent} messages in {elapsed_s:.1f} s"


@pytest.mark.slow
def test_client_that_never_reads_is_disconnected_without_affecting_others():
    app = NoisyApp()
    with run_viewer(app, patience_s=4.0) as viewer_server, viewer_server.connect(max_size=None) as good:
        with socket.create_connection(("127.0.0.1", viewer_server.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(
                f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{viewer_server.port}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                "Sec-WebSocket-Version: 13\r\n\r\n".encode()
            )
            viewer_server.wait_for("joined", 2)
            ticks = [receive(good, "frame")["ticks"] for _ in range(12)]
            assert ticks == sorted(set(ticks))
            (left,) = viewer_server.wait_for("left")
        assert left["missed"] > 0
        assert viewer_server.server.simulation.failure is None
        assert receive(good, "frame")["ticks"] > ticks[-1]


def test_client_limit_is_enforced_and_freed(small_viewer: RunningViewer):
    with small_viewer.connect() as one:
        with small_viewer.connect():
            assert close_reason(small_viewer.connect()) == (4503, "full")
        small_viewer.wait_for("left")
        with small_viewer.connect() as again:
            assert receive(again, "frame")
        assert receive(one, "frame")


CROWD = 16


@pytest.fixture
def small_viewer() -> Iterator[RunningViewer]:
    with run_viewer(NoisyApp(10), max_clients=2) as viewer_server:
        yield viewer_server


def test_many_connections_without_token_do_not_block_others():
    with run_viewer(NoisyApp(10), token=TOKEN, max_clients=2) as viewer_server:
        greeting = (
            f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{viewer_server.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        crowd = []
        try:
            for _ in range(CROWD + 2):
                crowd.append(socket.create_connection(("127.0.0.1", viewer_server.port), timeout=20))
                crowd[-1].sendall(greeting)
                assert b"101" in crowd[-1].recv(100)
            with viewer_server.connect(f"?token={TOKEN}") as client:
                assert receive(client, "frame")
        finally:
            for sock in crowd:
                sock.close()


def test_many_silent_sockets_do_not_block_others(small_viewer: RunningViewer):
    crowd = [socket.create_connection(("127.0.0.1", small_viewer.port)) for _ in range(CROWD + 30)]
    try:
        with small_viewer.connect() as client:
            assert receive(client, "frame")
    finally:
        for sock in crowd:
            sock.close()


# Simulation thread


def test_package_error_in_a_tick_becomes_a_notice():
    app = NoisyApp(10)
    with run_viewer(app) as viewer_server, viewer_server.connect() as client:
        receive(client, "frame")
        app.error = DemoError("the disk\nis full")
        assert receive(client, "notice")["text"] == "the disk is full"
        assert receive(client, "frame")
        assert viewer_server.server.simulation.failure is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_unexpected_exception_stops_the_server():
    app = NoisyApp(10)
    with run_viewer(app) as viewer_server:
        wait_until(lambda: app.ticks > 2, "ticks")
        app.error = ZeroDivisionError("a bug")
        wait_until(
            lambda: isinstance(viewer_server.server.simulation.failure, ZeroDivisionError), "the failure"
        )
        viewer_server.wait_for("stopped")


LONG_PLANS = """
import itertools, sys, torch
from nsde_policy.cli.main import main
from nsde_policy.inference.policy import Policy
plan = Policy.plan
def long(self, memory, **options):
    print("planning", flush=True)
    for _ in CHUNKS:
        plan(self, memory, **(options | {"steps": 1000}))
    return plan(self, memory, **options)
Policy.plan = long
sys.exit(main(["play", "--port", "0", "--json"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunks", "number"),
    [("range(1)", signal.SIGTERM), ("itertools.count()", signal.SIGINT)],
    ids=["long", "endless"],
)
def test_command_exits_0_on_a_signal_during_a_plan(chunks: str, number: signal.Signals):
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_PLANS.replace("CHUNKS", chunks)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert {process.stdout.readline()[:2], process.stdout.readline()[:2]} == {'{"', "pl"}
    finally:
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert json.loads(said.splitlines()[-1])["event"] == "stopped"


def test_no_frames_are_made_without_clients():
    app = NoisyApp()
    drawn: list[int] = []
    app.frame = lambda: drawn.append(1) or {"type": "frame"}  # type: ignore[method-assign]
    with run_viewer(app):
        wait_until(lambda: app.ticks > 20, "ticks")
    assert not drawn


def test_message_queue_holds_one_message_per_key():
    with run_viewer(NoisyApp(10)) as viewer_server:
        simulation = viewer_server.server.simulation
        simulation.stop()
        for value in range(1000):
            simulation.submit(SetControl("alpha", value))
            simulation.submit(SetControl("speed", value))
        assert [command for command, _ in simulation._queue.values()] == [
            SetControl("alpha", 999),
            SetControl("speed", 999),
        ]


# Command line


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["/no/such/run"], "not a run directory"),
        (["--port", "99999"], "port"),
        (["--seed", "-3"], "--seed"),
        (["--token-file", "/no/such/file"], "token"),
        (["--host", "no.such.host.invalid"], "try --host"),
        (["--host", "192.0.2.1", "--token-file", "TOKEN"], "try --host"),
        (["--host", "a" * 70], "try --host"),
        (["--host", ""], "need a --host"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_2(args: list[str], said: str, tmp_path: Path, capsys: Any):
    (tmp_path / "token").write_text(TOKEN)
    assert main(["play", *(str(tmp_path / "token") if arg == "TOKEN" else arg for arg in args)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
