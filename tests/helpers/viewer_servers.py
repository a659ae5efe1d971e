"""Viewer servers for tests: real policies and simulations, served from a thread."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from websockets.sync.client import ClientConnection, connect

from nsde_policy.tasks import get_task
from nsde_policy.training.train import train_run
from nsde_policy.viewer.app import App
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.messages import ClientMessage
from nsde_policy.viewer.server import ViewerServer
from tests.helpers.browser import DESKTOP, open_page
from tests.helpers.browser import wait_until as wait_for_page
from tests.helpers.server_threads import ServerThread

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SEED = 100_003
"""A start that the shipped policy solves within fourteen seconds."""


class RunningViewer(ServerThread):
    """A running viewer server."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def connect(self, query: str = "", **options: Any) -> ClientConnection:
        """Open a websocket to the server."""
        url = f"ws://127.0.0.1:{self.port}/live{query}"
        return connect(url, compression=None, proxy=None, open_timeout=10, close_timeout=0.2, **options)


def receive(
    client: ClientConnection, kind: str, condition: Callable[[dict[str, Any]], bool] = lambda message: True
) -> Any:
    """Return the next message of a type that satisfies a condition."""
    for _ in range(400):
        message = json.loads(client.recv(timeout=10))
        if message["type"] == kind and condition(message):
            return message
    raise AssertionError(f"no {kind} satisfied the condition")


def send(client: ClientConnection, do: str, **values: Any) -> None:
    client.send(json.dumps({"do": do, **values}))


def train_neighbours(folder: Path) -> Path:
    """Store the demonstrations of the package as nearest neighbours, and return the run."""
    run = folder / "neighbours"
    train_run(None, get_task("pusht").preset("default", "knn"), run, task="pusht")
    return run


@contextmanager
def run_viewer(app: App, **options: Any) -> Iterator[RunningViewer]:
    """Run a viewer server in a thread, on a free port unless `port` is given."""
    running = RunningViewer()
    with running.run(ViewerServer(app, ViewerSettings(**{"port": 0, **options}))):
        yield running


def run_events(app: App, *events: ClientMessage | int) -> None:
    """Handle messages; an integer is a number of control periods in between."""
    for event in events:
        if isinstance(event, int):
            for _ in range(event):
                app.tick()
        else:
            app.handle(event)


@contextmanager
def show_viewer(browser: "Browser", viewer: RunningViewer, **options: Any) -> "Iterator[Page]":
    """Open the page of a server and wait until it draws; assert no errors and no requests to other hosts.

    `options` are those of a browser context, by default the size of a desktop.
    """
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    seen = open_page(context)
    seen.page.goto(viewer.url)
    wait_for_page(seen.page, "!!viewer.frame && viewer.drawn > 3")
    yield seen.page
    context.close()
    assert not seen.errors, seen.errors
    assert all(url.startswith((viewer.url, viewer.url.replace("http", "ws"))) for url in seen.requests)


def to_screen(page: "Page", x: float, y: float) -> tuple[float, float]:
    """Convert a point of the first table to screen pixels."""
    box = page.locator(".panel canvas").first.bounding_box()
    assert box is not None
    return box["x"] + x * box["width"] / 512, box["y"] + y * box["height"] / 512
