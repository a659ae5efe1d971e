"""A server of the package in a thread of the test, on a free port."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nsde_policy.deploy.server.server import PolicyServer
from nsde_policy.viewer.server import ViewerServer


@contextmanager
def running(server: PolicyServer | ViewerServer) -> Iterator[int]:
    """Run it, and give its port; it has to stop when it is told to."""
    ready, port = threading.Event(), 0

    def note(found: int) -> None:
        nonlocal port
        port = found
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(server.run(note)))
    thread.start()
    assert ready.wait(10)
    try:
        yield port
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"
