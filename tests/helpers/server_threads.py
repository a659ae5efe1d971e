"""Run a server of the package in a thread of the test, on a free port."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nsde_policy.deploy.server.server import PolicyServer
from nsde_policy.viewer.server import ViewerServer


@contextmanager
def run_in_thread(server: PolicyServer | ViewerServer) -> Iterator[int]:
    """Run a server and yield its port; assert that it stops when told to."""
    ready, port = threading.Event(), 0

    def set_port(found: int) -> None:
        nonlocal port
        port = found
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(server.run(set_port)))
    thread.start()
    assert ready.wait(30), "the server did not start"
    try:
        yield port
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
