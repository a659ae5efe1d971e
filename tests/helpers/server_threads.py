"""Run a server of the package in a thread of the test, on a free port."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    """Wait for a condition; fail the test after the timeout."""
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, f"timeout: {what}"
        time.sleep(0.005)


@dataclass
class ServerThread:
    """A running server and the events that it logged."""

    server: Any = None
    port: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def log(self, event: str, **facts: Any) -> None:
        self.events.append({"event": event, **facts})

    def find_events(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        wanted = {"event": event, **facts}.items()
        return [found for found in self.events if wanted <= found.items()]

    def wait_for(self, event: str, count: int = 1, **facts: Any) -> list[dict[str, Any]]:
        """Wait for a number of events with a name and return them."""
        what = f"{count} × {event} {facts}: {self.events}"
        wait_until(lambda: len(self.find_events(event, **facts)) >= count, what)
        return self.find_events(event, **facts)

    @contextmanager
    def run(self, server: Any) -> Iterator[None]:
        """Run a server that logs to `log`; assert that it stops when told to."""
        self.server, ready = server, threading.Event()

        def set_port(port: int) -> None:
            self.port = port
            ready.set()

        thread = threading.Thread(target=lambda: asyncio.run(server.run(set_port)))
        thread.start()
        assert ready.wait(30), "the server did not start"
        try:
            yield
        finally:
            server.stop()
            thread.join(30)
            assert not thread.is_alive(), "the server did not stop"
