"""Run a server of the package in a thread of the test, on a free port."""

import asyncio
import logging
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
    events: list[str] = field(default_factory=list)

    def find_events(self, text: str) -> list[str]:
        return [event for event in self.events if text in event]

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait for a number of events that contain a text."""
        wait_until(lambda: len(self.find_events(text)) >= count, f"{count} × {text}: {self.events}")

    @contextmanager
    def run(self, server: Any) -> Iterator[None]:
        """Run a server and keep what the package logs; assert that it stops when told to."""
        self.server, ready = server, threading.Event()
        logger, handler = logging.getLogger("nsde_policy"), logging.Handler()
        handler.emit = lambda record: self.events.append(logging.Formatter().format(record))  # type: ignore[method-assign]
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)

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
            logger.removeHandler(handler)
            logger.setLevel(level)
            assert not thread.is_alive(), "the server did not stop"
