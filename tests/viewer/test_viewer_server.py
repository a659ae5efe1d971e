"""Tests for nsde_policy/viewer/server.py and http.py, over real sockets."""

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.cli.play import Play
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.tasks import get_task
from nsde_policy.viewer.app import App
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.messages import ClientMessage
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import PolicyRunner, load_runners
from nsde_policy.viewer.server import ViewerServer
from nsde_policy.viewer.simulation import Simulation
from tests.helpers.policy_servers import UPGRADE
from tests.helpers.viewer_servers import SEED, RunningViewer, receive, run_viewer, send

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

    size = 1_000_000

    def __init__(self, size: int = size) -> None:
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


def refuse(viewer: RunningViewer, query: str = "", **options: str) -> int:
    """Return the status with which the server refuses a websocket."""
    with pytest.raises(InvalidStatus) as refused, viewer.connect(query, **options):
        pass
    return refused.value.response.status_code


def is_disconnected(client: ClientConnection) -> bool:
    """Return whether the server closes the connection."""
    try:
        for _ in range(1000):
            client.recv(timeout=20)
    except ConnectionClosed:
        return True
    return False


# HTTP


def test_page_loads_only_its_own_files_under_a_strict_security_policy(viewer: RunningViewer):
    status, headers, body = get(viewer.url)
    assert status == 200
    rules = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == "'self'"
    assert headers["Referrer-Policy"] == "no-referrer"
    files = re.findall(r"(?:src|href)=\"(/[^\"]+)\"", body)
    assert {"/static/style.css", "/static/scene.js"} <= {*files}
    for path in files:
        status, headers, text = get(viewer.url.rstrip("/") + path)
        assert status == 200
        assert headers["Content-Type"].split(";")[0] in ("text/css", "text/javascript")
        assert headers["X-Content-Type-Options"] == "nosniff"
        body += text
    assert set(re.findall(r"\w+://[^'/$]+", body)) == {"http://www.w3.org"}, "the name of SVG, never fetched"
    assert not re.findall(r"@import|url\(|eval\(", body)
    for path in ("etc/passwd", "../nsde_policy/cli/main.py", "static/index.html", "static/../server.py"):
        assert get(viewer.url + path)[0] == 404


def test_only_local_host_names_are_served_against_dns_rebinding(viewer: RunningViewer):
    for host in ("localhost", "localhost:9999", "127.0.0.1", "[::1]:8000"):
        assert get(viewer.url, Host=host)[0] == 200
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[", "a b"):
        status, _, body = get(viewer.url, Host=host)
        assert status in (400, 403)
        assert "<canvas" not in body
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=20) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in sock.recv(100)


def test_only_websockets_of_the_page_are_accepted(viewer: RunningViewer):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "file://"):
        assert refuse(viewer, origin=origin) == 403
    with viewer.connect(origin=f"http://127.0.0.1:{viewer.port}") as client:
        assert receive(client, "hello")["mode"] == "play"


def test_token_is_required_if_set():
    with run_viewer(NoisyApp(10), token=TOKEN) as viewer_server:
        for query in ("", "?token=wrong", f"?token={TOKEN}x"):
            assert get(viewer_server.url + query)[0] == 403
            assert refuse(viewer_server, query) == 403
        assert get(viewer_server.url + f"?token={TOKEN}", Host="my-robot.example")[0] == 200
        with viewer_server.connect(f"?token={TOKEN}") as client:
            assert receive(client, "hello")
        assert not viewer_server.find_events("failed")


def test_public_address_requires_a_token_and_generates_one():
    with pytest.raises(ConfigError, match="token"):
        ViewerSettings(host="0.0.0.0")
    settings = Play(host="0.0.0.0").make_settings()
    assert settings.token is not None
    here, elsewhere = settings.urls(8000)
    assert here == f"http://localhost:8000/?token={settings.token}"
    assert "0.0.0.0" not in elsewhere
    assert settings.token not in repr(settings)
    assert Play().make_settings().urls(8000) == ["http://127.0.0.1:8000/"]
    odd = ViewerSettings("::1", token="+&/=%#?;'\"<a>+&/=").urls(8000)
    assert odd == ["http://[::1]:8000/?token=%2B%26%2F%3D%25%23%3F%3B%27%22%3Ca%3E%2B%26%2F%3D"]


# Messages


def test_changes_reach_all_clients_and_notices_only_the_one_that_caused_them(viewer: RunningViewer):
    with viewer.connect() as asked, viewer.connect() as other:
        receive(other, "frame")
        send(asked, "select_methods", methods=["unknown"])
        assert "shipped" in receive(asked, "notice")["text"]
        send(asked, "pause", on=True)
        while (message := json.loads(other.recv(timeout=20)))["type"] != "state" or not message["paused"]:
            assert message["type"] != "notice"


def test_drag_ends_when_its_client_disconnects(viewer: RunningViewer):
    with viewer.connect() as client:
        receive(client, "frame")
        send(client, "drag", what="agent", x=20, y=20)
        receive(client, "frame", lambda m: m["panels"][0]["target"] == [20, 20])
    with viewer.connect() as client:
        assert receive(client, "frame", lambda m: m["panels"][0]["target"] != [20, 20])


def test_a_table_is_drawn_after_a_change_of_the_method_even_if_paused(methods: list[PolicyRunner]):
    with run_viewer(PlayApp(methods, seed=SEED)) as viewer_server, viewer_server.connect() as client:
        send(client, "pause", on=True)
        for names in (["neighbours"], ["shipped", "neighbours"], ["shipped"]):
            send(client, "select_methods", methods=names)
            state = receive(client, "state", lambda m, names=names: m["panels"] == names)
            frame = receive(client, "frame")
            assert (frame["epoch"], len(frame["panels"])) == (state["epoch"], len(names))


# Slow, hostile or too many clients


@pytest.mark.parametrize("data", ["{}", b"\x00\xff garbage", "x" * 100_000])
def test_an_invalid_message_disconnects_only_its_client(viewer: RunningViewer, data: str | bytes):
    with viewer.connect() as good, viewer.connect() as bad:
        bad.send(data)
        assert is_disconnected(bad)
        viewer.wait_for("left")
        assert receive(good, "frame")


def test_a_client_that_never_reads_gets_no_more_frames_and_affects_no_other():
    with run_viewer(NoisyApp()) as viewer_server, viewer_server.connect(max_size=None) as good:
        with socket.create_connection(("127.0.0.1", viewer_server.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(UPGRADE.replace(b"GET /", b"GET /live"))
            viewer_server.wait_for("joined", 2)
            ticks = [receive(good, "frame")["ticks"] for _ in range(30)]
            assert ticks == sorted(set(ticks))
            unsent = [client.transport.get_write_buffer_size() for client in viewer_server.server._clients]
            assert max(unsent) < 2 * NoisyApp.size
        viewer_server.wait_for("left")


def test_the_number_of_clients_is_limited():
    with run_viewer(NoisyApp(10), max_clients=2) as viewer_server, viewer_server.connect() as one:
        with viewer_server.connect():
            viewer_server.wait_for("joined", 2)
            assert refuse(viewer_server) == 503
        viewer_server.wait_for("left")
        with viewer_server.connect() as again:
            assert receive(again, "frame")
        assert receive(one, "frame")


# Simulation


def test_a_package_error_in_a_tick_becomes_a_notice_and_any_other_stops_the_server():
    app, raised = NoisyApp(10), threading.Event()

    class Server(ViewerServer):
        async def run(self, ready: Any) -> None:
            try:
                await super().run(ready)
            except ZeroDivisionError:
                raised.set()

    running = RunningViewer()
    server = Server(app, ViewerSettings(port=0))
    with running.run(server), running.connect() as client:
        receive(client, "frame")
        app.error = DemoError("the disk\nis full")
        assert receive(client, "notice")["text"] == "the disk is full"
        assert receive(client, "frame")
        app.error = ZeroDivisionError("a bug")
        assert raised.wait(10)


def test_time_stands_still_while_nobody_watches():
    app = NoisyApp(10)
    with run_viewer(app) as viewer_server:
        with viewer_server.connect() as client:
            receive(client, "frame")
        viewer_server.wait_for("left")
        ticks = app.ticks
        time.sleep(20 * app.period_s)
        assert app.ticks <= ticks + 1, "one may have been in progress"
