"""Web server of the viewer: the page over HTTP and a websocket for each client, on one port."""

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import get_args

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from nsde_policy.deploy.server.settings import Log
from nsde_policy.deploy.server.websocket_server import WebsocketServer
from nsde_policy.errors import NsdePolicyError, RemoteError

from . import messages
from .app import App
from .http import FULL, NO_TOKEN, SOCKET, ViewerSettings, load_files, respond_with_file
from .loop import SimulationThread


class Client:
    """A websocket connection and its send queue, which holds the newest message of each type.

    A client that reads slowly misses frames.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._queue: dict[messages.MessageType, str] = {}
        self._queued = asyncio.Event()
        self.missed = 0
        """Messages that were replaced before they could be sent."""

    def put(self, kind: messages.MessageType, text: str) -> None:
        """Queue a message without blocking; it replaces an older one of its type."""
        self.missed += kind in self._queue
        self._queue[kind] = text
        self._queued.set()

    async def send_queued(self, timeout_s: float) -> None:
        """Send queued messages until the connection closes; abort it if the client does not read."""
        try:
            while True:
                await self._queued.wait()
                self._queued.clear()
                # All at once: a frame that is queued meanwhile must not overtake the state it belongs to.
                queued, self._queue = self._queue, {}
                for kind in get_args(messages.MessageType):
                    if (text := queued.get(kind)) is not None:
                        async with asyncio.timeout(timeout_s):
                            await self._connection.send(text)
        except TimeoutError:
            self._connection.transport.abort()
        except ConnectionClosed:
            pass


class ViewerServer(WebsocketServer):
    """Serves an app to web browsers.

    server = ViewerServer(app, ViewerSettings(port=0), build_json_log(sys.stderr))
    asyncio.run(server.run(print))  # prints the port; returns after `server.stop()`
    """

    def __init__(self, app: App, settings: ViewerSettings, log: Log) -> None:
        super().__init__(settings, log)
        self._settings, self._files = settings, load_files(app.scene.script)
        self._hello = messages.encode_message(app.hello)
        self._clients: set[Client] = set()
        self._is_new_page = False
        self.simulation = SimulationThread(app, self._publish)

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until `stop`; call `ready` with the port. Raise an exception of the simulation."""
        self.simulation.on_failure = self.stop
        try:
            size = messages.MAX_CLIENT_MESSAGE_BYTES
            async with self._listen(self._serve_client, self._respond, max_queue=4, max_size=size) as port:
                self.simulation.start()
                self._log("showing", host=self._settings.host, port=port)
                ready(port)
                await self._stop.wait()
        finally:
            self.simulation.stop()
        self._log("stopped")
        if self.simulation.failure is not None:
            raise self.simulation.failure

    def _publish(self, kind: messages.MessageType, text: str) -> None:
        """Queue a message for all clients; called from the simulation thread."""

        def put() -> None:
            for client in self._clients:
                client.put(kind, text)

        with contextlib.suppress(RuntimeError):  # the event loop has stopped
            self._loop.call_soon_threadsafe(put)

    def _respond(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer an HTTP request; None lets a websocket handshake go on."""
        if objection := self._settings.find_objection(request):
            return self._refuse(connection, objection)
        path = request.path.partition("?")[0]
        if path == SOCKET:
            return None  # `_serve_client` checks the token, because a page cannot read an answer from here
        # The other files are public: a browser asks for them without the token in the page's address.
        if path == "/" and not self._settings.accepts_token(request):
            return self._refuse(connection, "a token is required in the address: ?token=…")
        if path == "/":  # a page that reconnects does not load it again
            self._is_new_page = not self._clients
        if path not in self._files:
            return connection.respond(HTTPStatus.NOT_FOUND, f"{path[:80]} does not exist\n")
        return respond_with_file(*self._files[path], request.headers["Host"])

    def _refuse(self, connection: ServerConnection, why: str) -> Response:
        self._log("refused", why=why)
        return connection.respond(HTTPStatus.FORBIDDEN, why + "\n")

    async def _serve_client(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        token = self._settings.accepts_token(connection.request)
        if token and len(self._clients) < self._settings.max_clients:
            await self._serve_page(connection)
            return
        code, why = FULL if token else NO_TOKEN
        self._log("refused", why=why)
        await connection.close(code, why)

    async def _serve_page(self, connection: ServerConnection) -> None:
        """Send frames to an admitted client and handle its messages until the connection ends."""
        client = Client(connection)
        self._clients.add(client)
        self.simulation.clients = len(self._clients)
        self._log("joined", clients=len(self._clients))
        why, sender = "closed", None
        try:
            await connection.send(self._hello)
            if self._is_new_page:
                self._is_new_page = False
                self.simulation.submit(messages.Restore())
            self.simulation.submit(messages.Refresh())
            sender = asyncio.create_task(client.send_queued(self.patience_s))
            await self._receive_from(connection, client)
        except ConnectionClosed:
            pass
        except RemoteError as error:
            why = str(error)
            await connection.close(1008, "invalid message")
        finally:
            if sender is not None:
                sender.cancel()
            self._clients.discard(client)
            self.simulation.clients = len(self._clients)
            self._log("left", why=why, missed=client.missed, clients=len(self._clients))

    async def _receive_from(self, connection: ServerConnection, client: Client) -> None:
        """Receive messages of a client until one is invalid; release its drag at the end."""
        holds = False

        def report(error: NsdePolicyError) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has stopped
                self._loop.call_soon_threadsafe(client.put, "notice", messages.encode_notice(error))

        try:
            async for data in connection:
                message = messages.parse_message(data)
                if isinstance(message, messages.Drag | messages.MoveAgent | messages.Release):
                    holds = not isinstance(message, messages.Release)
                self.simulation.submit(message, report)
        finally:
            if holds:
                self.simulation.submit(messages.Release())
