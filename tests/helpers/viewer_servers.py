"""Real servers of the live page for tests, in a thread, with real policies on real tables."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.tasks import get_task
from nsde_policy.training.progress import train
from nsde_policy.viewer.app import Stage
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.launch import performers
from nsde_policy.viewer.messages import Command
from nsde_policy.viewer.policy_runner import Performer
from nsde_policy.viewer.server import ViewerServer
from tests.helpers.policy_servers import until
from tests.helpers.server_threads import running

SEED = 100_003
"""A start that the shipped policy solves within fourteen seconds."""


@dataclass
class Shown:
    """A page that is served, and what the server logged."""

    port: int
    server: ViewerServer
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def line(self, query: str = "", **options: Any) -> ClientConnection:
        """A websocket to it."""
        url = f"ws://127.0.0.1:{self.port}/live{query}"
        return connect(url, compression=None, proxy=None, open_timeout=5, close_timeout=0.2, **options)

    def wait_for(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            return [e for e in self.events if e["event"] == event]

        until(lambda: len(found()) >= count, f"{count} × {event}: {self.events}")
        return found()


def heard(line: ClientConnection, kind: str, where: Callable[[dict[str, Any]], bool] = lambda m: True) -> Any:
    """The next message of a kind for which something holds."""
    for _ in range(400):
        message = json.loads(line.recv(timeout=10))
        if message["type"] == kind and where(message):
            return message
    raise AssertionError(f"no such {kind}")


def ask(line: ClientConnection, do: str, **values: Any) -> None:
    line.send(json.dumps({"do": do, **values}))


@contextmanager
def shown(stage: Stage, **options: Any) -> Iterator[Shown]:
    """A server in a thread, on a free port unless one is named."""
    events: list[dict[str, Any]] = []

    def log(event: str, **facts: Any) -> None:
        events.append({"event": event, **facts})

    server = ViewerServer(stage, ViewerSettings(**{"port": 0, **options}), log)
    with running(server) as port:
        yield Shown(port, server, events)


def two_methods(folder: Path) -> list[Performer]:
    """The shipped Neural SDE, and nearest neighbours, which are trained in an instant."""
    run = folder / "neighbours"
    config = get_task("pusht").preset("default", "knn")
    train(
        None, config, run, task="pusht", seed=0, device="cpu", resume=False, eval_every=0, tensorboard=False
    )
    return performers([SHIPPED_POLICY, run])


def act(stage: Stage, *events: Command | int) -> None:
    """Commands, and numbers of ticks in between."""
    for event in events:
        if isinstance(event, int):
            for _ in range(event):
                stage.tick()
        else:
            stage.handle(event)
