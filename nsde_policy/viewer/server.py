"""Web server of the live page: files over HTTP and a websocket for each client, on one port."""

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, broadcast
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from nsde_policy.errors import NsdePolicyError, RemoteError

from . import messages
from .app import App
from .http import PageServer, ViewerSettings, load_files

logger = logging.getLogger(__name__)
SOCKET = "/live"
FRAME_S = 1 / 30
"""Shortest time between two frames, at any speed."""
MAX_UNSENT_BYTES = 2**18
"""A client with more than this in its send buffer gets no frames until it has read them."""


class ViewerServer(PageServer):
    """Serves an app to web browsers; all clients see and control the same tables.

    server = ViewerServer(app, ViewerSettings(port=0))
    asyncio.run(server.run(print))  # prints the port; returns after `server.stop()`
    """

    def __init__(self, app: App, settings: ViewerSettings) -> None:
        super().__init__(settings, load_files(app.scene.script))
        self._app = app
        self._clients: set[ServerConnection] = set()
        self._lock = asyncio.Lock()
        """Held while the app is used, because its slow methods run in another thread."""
        self._published_revision = -1

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until `stop`; call `ready` with the port. Raise an exception of the app."""
        size = messages.MAX_CLIENT_MESSAGE_BYTES
        async with self._listen(self._serve_client, self._respond, max_queue=4, max_size=size) as port:
            ready(port)
            await self._simulate()

    async def _simulate(self) -> None:
        """Run one control period after the other until `stop`; time stands still while nobody watches."""
        app, due, shown, is_stale = self._app, 0.0, 0.0, False
        while not self._stop.is_set():
            if not self._clients:
                await asyncio.sleep(FRAME_S)
                continue
            await asyncio.sleep(max(0.0, min(due - time.monotonic(), FRAME_S)))
            async with self._lock:
                try:
                    if time.monotonic() >= due:
                        due = max(due + app.period_s, time.monotonic())
                        is_stale |= await asyncio.to_thread(app.tick)
                    if self._published_revision != app.revision:
                        self._published_revision, is_stale = app.revision, True
                        self._publish(app.state())
                    if is_stale and time.monotonic() >= shown + FRAME_S:
                        shown, is_stale = time.monotonic(), False
                        self._publish(await asyncio.to_thread(app.frame))
                except NsdePolicyError as error:
                    broadcast(self._clients, messages.encode_notice(error))

    def _publish(self, message: messages.PageMessage) -> None:
        """Send a message to all clients; drop frames for clients that lag behind."""
        text, is_frame = messages.encode_message(message), message["type"] == "frame"
        readers = [
            client
            for client in self._clients
            if not is_frame or client.transport.get_write_buffer_size() < MAX_UNSENT_BYTES
        ]
        broadcast(readers, text)

    def _answer(self, connection: ServerConnection, request: Request, path: str) -> Response | None:
        """Let the websocket of the page through; there is nothing else."""
        if path != SOCKET:
            return connection.respond(HTTPStatus.NOT_FOUND, f"{path[:80]} does not exist\n")
        if len(self._clients) >= self._settings.max_clients:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients\n")
        return None

    async def _serve_client(self, connection: ServerConnection) -> None:
        """Send messages to a client and handle its own until the connection ends."""
        why = "closed"
        try:
            await connection.send(messages.encode_message(self._app.hello))
            self._clients.add(connection)
            self._published_revision = -1  # the new client needs the state
            logger.debug("a client joined, %d in all", len(self._clients))
            async for data in connection:
                await self._handle(messages.parse_message(data), connection)
        except ConnectionClosed:
            pass
        except RemoteError as error:
            why = str(error)
            await connection.close(1008, "invalid message")
        finally:
            self._clients.discard(connection)
            await self._handle(messages.Release(), connection)
            logger.debug("a client left: %s", why)

    async def _handle(self, message: messages.ClientMessage, connection: ServerConnection) -> None:
        """Handle a message between two control periods, and tell its client if it cannot be done."""
        async with self._lock:
            try:
                await asyncio.to_thread(self._app.handle, message)
            except NsdePolicyError as error:
                broadcast([connection], messages.encode_notice(error))
