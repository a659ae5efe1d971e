"""Tests for nsde_policy/viewer/server.py, door.py, hub.py and clockwork.py: over real sockets."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from nsde_policy.cli.main import main
from nsde_policy.deploy.server.connection import HALF_OPEN
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.viewer.app import table
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.launch import performers, settings
from nsde_policy.viewer.messages import Command, Set
from nsde_policy.viewer.play_app import Play
from tests.helpers.policy_servers import until
from tests.helpers.viewer_servers import SEED, SHIPPED_POLICY, Shown, ask, heard, shown

TOKEN = "abcdefghijklmnop1234"


@pytest.fixture
def live() -> Iterator[Shown]:
    with shown(Play(performers([SHIPPED_POLICY]), seed=SEED)) as house:
        yield house


class Loud:
    """A stage that says a lot, quickly; `trouble` is raised by its next tick."""

    hello: dict[str, Any] = table("play")
    period_s = 0.01

    def __init__(self, size: int = 1_000_000) -> None:
        self.revision, self.ticks, self.size = 0, 0, size
        self.trouble: Exception | None = None

    def handle(self, command: Command) -> None:
        self.revision += 1

    def tick(self) -> bool:
        self.ticks += 1
        if self.trouble:
            trouble, self.trouble = self.trouble, None
            raise trouble
        return True

    def state(self) -> dict[str, Any]:
        return {"type": "state"}

    def frame(self) -> dict[str, Any]:
        return {"type": "frame", "ticks": self.ticks, "noise": "x" * self.size}


def get(url: str, **headers: str) -> tuple[int, dict[str, str], str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def ended(line: ClientConnection) -> bool:
    """Whether the server ends the conversation."""
    try:
        for _ in range(1000):
            line.recv(timeout=5)
    except ConnectionClosed:
        return True
    return False


def turned_away(line: ClientConnection) -> tuple[int, str]:
    """With what code and reason the server closes, before it says anything."""
    with line, pytest.raises(ConnectionClosed) as closed:
        line.recv(timeout=5)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


# The door


def test_the_page_comes_with_a_policy_that_lets_nothing_else_in(live: Shown):
    status, headers, body = get(live.url)
    assert status == 200
    assert "<canvas" in body
    rules = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert rules["script-src"].startswith("'sha256-")
    assert rules["frame-ancestors"] == "'none'"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_the_page_names_no_other_host():
    page = (Path(__file__).parents[2] / "nsde_policy/viewer/page.html").read_text()
    assert set(re.findall(r"\w+://[^'/]+", page)) == {"http://www.w3.org"}, "the name of SVG, never fetched"
    assert not re.findall(r"<link(?! rel=.icon. href=.data:)|<script |@import|url\(", page)


def test_health_tells_how_the_control_loop_is(live: Shown):
    until(lambda: json.loads(get(live.url + "healthz")[2])["periods"] > 3, "periods")
    facts = json.loads(get(live.url + "healthz")[2])
    assert (facts["status"], facts["clients"]) == ("ok", 0)
    assert {"late_ms", "late_p99_ms", "work_ms"} <= facts.keys()


def test_there_is_nothing_else(live: Shown):
    for path in ("etc/passwd", "../nsde_policy/cli/main.py", "page.html", "live/x"):
        assert get(live.url + path)[0] == 404


def test_nothing_can_be_posted(live: Shown):
    for method in ("POST", "PUT", "DELETE"):
        request = urllib.request.Request(live.url, method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=5)
        assert refused.value.code in (400, 405), "older versions of websockets say 400"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[", "a b"]
)
def test_by_another_name_the_page_is_not_given_so_no_name_can_be_bound_to_it_later(live: Shown, host: str):
    status, _, body = get(live.url, Host=host)
    assert status in (400, 403)
    assert "<canvas" not in body


def test_two_names_are_none(live: Shown):
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in sock.recv(100)


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1", "[::1]:8000", "127.1.2.3"])
def test_by_names_of_this_machine_it_is_also_through_a_tunnel(live: Shown, host: str):
    assert get(live.url, Host=host)[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_pages_of_others_may_not_look_on(live: Shown, origin: str):
    with pytest.raises(InvalidStatus) as refused, live.line(origin=origin):
        pass
    assert refused.value.response.status_code == 403


def test_the_page_itself_may(live: Shown):
    with live.line(origin=f"http://127.0.0.1:{live.port}") as line:
        assert heard(line, "hello")["mode"] == "play"


@pytest.mark.parametrize(
    "query", ["", "?token=", "?token=wrong", f"?token={TOKEN}x", f"?token={TOKEN}&token=x"]
)
def test_where_a_token_is_asked_for_nothing_comes_without_it(query: str):
    with shown(Loud(10), token=TOKEN) as house:
        assert get(house.url + query)[0] == 403
        assert get(house.url + "healthz" + query)[0] == 403
        assert turned_away(house.line(query)) == (4403, "token")
        assert get(house.url + f"?token={TOKEN}", Host="my-robot.example")[0] == 200
        with house.line(f"?token={TOKEN}") as line:
            assert heard(line, "hello")


def test_more_fields_than_anybody_needs_are_no_token():
    query = "?" + "&".join(f"a{k}=1" for k in range(20))
    with shown(Loud(10), token=TOKEN) as house:
        assert get(house.url + query)[0] == 403
        assert turned_away(house.line(query)) == (4403, "token")
        assert not [event for event in house.events if event["event"] in ("error", "transport")]


def test_other_machines_are_only_let_in_with_a_token_which_is_made_up_where_none_is_given():
    with pytest.raises(ConfigError, match="token"):
        ViewerSettings(host="0.0.0.0")
    made = settings("0.0.0.0", 8000, None)
    assert made.token is not None
    here, *elsewhere = made.urls(8000)
    assert here == f"http://localhost:8000/?token={made.token}"
    assert not any("localhost" in url or "0.0.0.0" in url for url in elsewhere)
    assert made.token not in repr(made)
    assert settings("127.0.0.1", 8000, None).urls(8000) == ["http://127.0.0.1:8000/"]


def test_the_addresses_that_are_printed_work_from_here_and_elsewhere_whatever_the_token():
    token = "+&/=%#?;'\"<a>+&/="
    with shown(Loud(10), host="0.0.0.0", token=token) as house:
        addresses = ViewerSettings(host="0.0.0.0", token=token).urls(house.port)
        assert [get(url)[0] for url in addresses] == [200] * len(addresses)


# The conversation


def test_a_page_is_told_all_it_needs_and_then_kept_up_to_date(live: Shown):
    with live.line() as line:
        hello = json.loads(line.recv(timeout=5))
        assert (hello["type"], [m["name"] for m in hello["methods"]]) == ("hello", ["shipped"])
        state = heard(line, "state")
        assert state["seed"] == SEED
        first, second = heard(line, "frame"), heard(line, "frame")
        assert second["last"] > first["last"]
        assert len(second["lanes"][0]["trail"]) == 10
        ask(line, "reset", seed=5)
        assert heard(line, "state", lambda m: m["seed"] == 5)
        ask(line, "set", name="alpha", value=2.5)
        assert heard(line, "state", lambda m: m["controls"]["alpha"] == 2.5)


def test_what_one_page_does_all_pages_see(live: Shown):
    with live.line() as one, live.line() as other:
        ask(one, "pause", on=True)
        assert heard(other, "state", lambda m: m["paused"])


def test_what_cannot_be_done_is_told_and_the_page_stays(live: Shown):
    with live.line() as line:
        ask(line, "choose", lanes=["nobody"])
        assert "shipped" in heard(line, "notice")["text"]
        assert heard(line, "frame")


def test_what_cannot_be_done_is_told_to_the_page_that_asked_alone(live: Shown):
    with live.line() as asked, live.line() as other:
        heard(other, "frame")
        ask(asked, "choose", lanes=["nobody"])
        assert heard(asked, "notice")
        ask(other, "pause", on=True)
        while (message := json.loads(other.recv(timeout=5)))["type"] != "state" or not message["paused"]:
            assert message["type"] != "notice"


def test_a_hand_whose_page_is_gone_lets_go(live: Shown):
    with live.line() as line:
        heard(line, "frame")
        ask(line, "hold", lane=0, what="agent", x=20, y=20)
        heard(line, "frame", lambda m: m["lanes"][0]["target"] == [20, 20])
    with live.line() as line:
        assert heard(line, "frame", lambda m: m["lanes"][0]["target"] != [20, 20])


# Clients that are slow, hostile, or too many


def test_a_few_words_that_make_no_sense_are_passed_over_and_many_end_the_connection(live: Shown):
    with live.line() as line:
        for _ in range(5):
            line.send("{}")
        ask(line, "reset", seed=9)
        assert heard(line, "state", lambda m: m["seed"] == 9)
        for _ in range(5):
            line.send(b"\x00\xff garbage")
        assert ended(line)
    live.wait_for("left")
    with live.line() as line:
        assert heard(line, "frame")


def test_who_keeps_asking_for_what_there_is_not_has_to_go(live: Shown):
    with live.line() as line:
        for _ in range(9):
            ask(line, "choose", lanes=["nobody"])
            assert "there is no method" in heard(line, "notice")["text"]
        line.send('{"do": "set", "name": "gravity", "value": 1}')
        assert ended(line)
    (left,) = live.wait_for("left")
    assert "gravity" in left["why"]


def test_a_huge_message_ends_the_connection_and_nothing_else(live: Shown):
    with live.line() as good, live.line() as bad:
        bad.send("x" * 100_000)
        assert ended(bad)
        assert heard(good, "frame")


def test_a_flood_of_commands_is_slowed_down_and_the_control_loop_is_not():
    stage = Loud(10)
    with shown(stage, max_rate=50) as house, house.line() as line:
        heard(line, "frame")
        ticks, sent = stage.ticks, 0
        line.socket.settimeout(0.05)
        try:
            for sent in range(100_000):  # noqa: B007
                line.send('{"do":"step"}')
                if stage.ticks - ticks > 100:
                    break
        except (TimeoutError, ConnectionClosed):
            pass
        until(lambda: stage.ticks - ticks > 100, "a hundred periods")
        assert stage.revision < 400, f"of {sent} commands"


def test_a_page_that_never_reads_misses_frames_and_has_to_go_while_others_see_everything():
    stage = Loud()
    with shown(stage, patience_s=2.0) as house, house.line(max_size=None) as good:
        with socket.create_connection(("127.0.0.1", house.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(
                f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{house.port}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                "Sec-WebSocket-Version: 13\r\n\r\n".encode()
            )
            house.wait_for("joined", 2)
            ticks = [heard(good, "frame")["ticks"] for _ in range(12)]
            assert ticks == sorted(set(ticks))
            (left,) = house.wait_for("left")
        assert left["missed"] > 0
        assert house.server.clockwork.failure is None
        assert heard(good, "frame")["ticks"] > ticks[-1]


def test_too_many_are_turned_away_at_the_door_and_let_in_when_there_is_room(live_small: Shown):
    with live_small.line() as one:
        with live_small.line():
            assert turned_away(live_small.line()) == (4503, "full")
        live_small.wait_for("left")
        with live_small.line() as again:
            assert heard(again, "frame")
        assert heard(one, "frame")


@pytest.fixture
def live_small() -> Iterator[Shown]:
    with shown(Loud(10), max_clients=2) as house:
        yield house


def test_a_crowd_without_a_token_that_will_not_leave_keeps_nobody_out():
    with shown(Loud(10), token=TOKEN, max_clients=2) as house:
        greeting = (
            f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{house.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        crowd = []
        try:
            for _ in range(HALF_OPEN + 2):
                crowd.append(socket.create_connection(("127.0.0.1", house.port), timeout=5))
                crowd[-1].sendall(greeting)
                assert b"101" in crowd[-1].recv(100)
            with house.line(f"?token={TOKEN}") as line:
                assert heard(line, "frame")
        finally:
            for sock in crowd:
                sock.close()


def test_a_crowd_of_silent_sockets_keeps_nobody_out(live_small: Shown):
    crowd = [socket.create_connection(("127.0.0.1", live_small.port)) for _ in range(HALF_OPEN + 30)]
    try:
        with live_small.line() as line:
            assert heard(line, "frame")
    finally:
        for sock in crowd:
            sock.close()


# The clockwork


def test_an_error_of_ours_is_told_to_the_people_and_the_show_goes_on():
    stage = Loud(10)
    with shown(stage) as house, house.line() as line:
        heard(line, "frame")
        stage.trouble = DemoError("the disk\nis full")
        assert heard(line, "notice")["text"] == "the disk is full"
        assert heard(line, "frame")
        assert house.server.clockwork.failure is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_ends_the_server_instead_of_leaving_a_dead_page():
    stage = Loud(10)
    with shown(stage) as house:
        until(lambda: stage.ticks > 2, "ticks")
        stage.trouble = ZeroDivisionError("a bug")
        until(lambda: isinstance(house.server.clockwork.failure, ZeroDivisionError), "the failure")
        house.wait_for("stopped")


LONG_PLANS = """
import itertools, sys, torch
from nsde_policy.cli.main import main
from nsde_policy.inference.policy import Policy
plan = Policy.plan
def long(self, memory, **options):
    print("planning", flush=True)
    for _ in CHUNKS:
        plan(self, memory, **(options | {"chunk": 1000}))
    return plan(self, memory, **options)
Policy.plan = long
sys.exit(main(["play", "--port", "0", "--json"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("chunks", ["range(1)", "itertools.count()"], ids=["long", "endless"])
def test_the_command_ends_with_0_when_told_in_the_middle_of_a_plan(chunks: str, number: signal.Signals):
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


def test_nothing_is_drawn_for_nobody_and_the_control_loop_goes_on_all_the_same():
    stage = Loud()
    drawn: list[int] = []
    stage.frame = lambda: drawn.append(1) or {"type": "frame"}  # type: ignore[method-assign]
    with shown(stage):
        until(lambda: stage.ticks > 20, "ticks")
    assert not drawn


def test_the_box_of_commands_holds_one_of_each_kind():
    with shown(Loud(10)) as house:
        clockwork = house.server.clockwork
        clockwork.stop()
        for value in range(1000):
            clockwork.submit(Set("alpha", value))
            clockwork.submit(Set("speed", value))
        assert [command for command, _ in clockwork._box.values()] == [Set("alpha", 999), Set("speed", 999)]


# The command


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["/no/such/run"], "no run directory"),
        (["--port", "99999"], "port"),
        (["--seed", "-3"], "--seed"),
        (["--token-file", "/no/such/file"], "token"),
        (["--host", "no.such.host.invalid"], "no address of this machine"),
        (["--host", "192.0.2.1", "--token-file", "TOKEN"], "try --host"),
        (["--host", "a" * 70], "try --host"),
        (["--host", ""], "need a --host"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(args: list[str], said: str, tmp_path: Path, capsys: Any):
    (tmp_path / "token").write_text(TOKEN)
    assert main(["play", *(str(tmp_path / "token") if arg == "TOKEN" else arg for arg in args)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
