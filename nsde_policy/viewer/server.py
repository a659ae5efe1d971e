"""One port: the page over HTTP, and what goes on over a websocket."""

import asyncio
import contextlib
import errno
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State

from nsde_policy import __version__
from nsde_policy.deploy.server.auth import Log, Pace, describe
from nsde_policy.deploy.server.connection import Sockets, listen
from nsde_policy.errors import ConfigError, NsdePolicyError, ProtocolError
from nsde_policy.viewer.app import Stage
from nsde_policy.viewer.clients import Hub, Outbox
from nsde_policy.viewer.http import FULL, NO_TOKEN, SOCKET, Page, ViewerSettings
from nsde_policy.viewer.loop import Clockwork, Kind
from nsde_policy.viewer.messages import Aim, Greet, Hold, Release, encode, notice, parse

MALFORMED = 10
"""Messages a page may send that make no sense, before it has to go."""


class ViewerServer:
    """Shows a stage to whoever may look on.

    server = ViewerServer(stage, ViewerSettings(port=0), json_log(sys.stderr))
    asyncio.run(server.run(print))  # prints the port; returns after `server.stop()`
    """

    def __init__(self, stage: Stage, settings: ViewerSettings, log: Log) -> None:
        self._settings, self._log, self._page = settings, log, Page()
        self._hello = encode(stage.hello)
        self._hub = Hub()
        self._sockets = Sockets(settings.max_clients, buffer=2**20)
        self.clockwork = Clockwork(stage, self._publish)

    async def run(self, ready: Callable[[int], None]) -> None:
        """Show until `stop`; `ready` is told the port. Raises what ended the stage, if that was an error."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._note_stray_error)
        try:
            server = await self._listen()
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that can be none
            raise ConfigError(self._cannot_listen(error)) from None
        self.clockwork.on_failure = self.stop
        self.clockwork.start()
        try:
            async with server:
                port = int(server.sockets[0].getsockname()[1])
                self._log("showing", host=self._settings.host, port=port)
                ready(port)
                await self._stop.wait()
        finally:
            self.clockwork.stop()
        self._log("stopped", **self.clockwork.timing())
        if self.clockwork.failure is not None:
            raise self.clockwork.failure

    def stop(self) -> None:
        """Close every connection, end the stage, and return from `run`; from any thread."""
        with contextlib.suppress(RuntimeError):  # it has stopped already
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _listen(self) -> Server:
        return await listen(
            self._converse,
            self._door,
            self._settings.host,
            self._settings.port,
            sockets=self._sockets,
            log=self._log,
            patience_s=self._settings.patience_s,
            max_size=self._settings.max_message,
            max_queue=4,
        )

    def _cannot_listen(self, error: Exception) -> str:
        host, port = self._settings.host, self._settings.port
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
            return f"cannot listen on {host}:{port}: {why}; try --port 0"
        return f"cannot listen on {host}, which is no address of this machine: {why}; try --host 127.0.0.1"

    def _publish(self, kind: Kind, text: str) -> None:
        """From the thread of the stage to that of the sockets."""
        with contextlib.suppress(RuntimeError):  # nobody listens any more
            self._loop.call_soon_threadsafe(self._hub.publish, kind, text)

    def _door(self, connection: ServerConnection, request: Request) -> Response | None:
        if objection := self._settings.objection(request):
            return self._refused(connection, objection)
        if getattr(request, "method", "GET") != "GET":  # older websockets refuse it themselves
            response = connection.respond(HTTPStatus.METHOD_NOT_ALLOWED, "here one can only GET\n")
            response.headers["Allow"] = "GET"
            return response
        path = request.path.partition("?")[0]
        if path == SOCKET:
            return None  # `_converse` says what is wrong: a page cannot read it here
        if not self._settings.knows(request):
            return self._refused(connection, "a token is needed in the address: ?token=…")
        if path == "/":
            headers = self._page.headers(request.headers["Host"])
            return Response(HTTPStatus.OK.value, HTTPStatus.OK.phrase, headers, self._page.body)
        if path == "/favicon.ico":
            return Response(HTTPStatus.NO_CONTENT.value, HTTPStatus.NO_CONTENT.phrase, Headers(), b"")
        if path == "/healthz":
            return connection.respond(HTTPStatus.OK, json.dumps(self._health()) + "\n")
        return connection.respond(HTTPStatus.NOT_FOUND, f"here are /, {SOCKET} and /healthz\n")

    def _refused(self, connection: ServerConnection, why: str) -> Response:
        self._log("refused", why=why)
        return connection.respond(HTTPStatus.FORBIDDEN, why + "\n")

    def _health(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "version": __version__,
            "clients": len(self._hub),
            "sockets": len(self._sockets),
            **self.clockwork.timing(),
        }

    async def _converse(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        token, full = self._settings.knows(connection.request), len(self._hub) >= self._settings.max_clients
        if not token or full:
            code, why = FULL if token else NO_TOKEN
            self._log("refused", why=why)
            await connection.close(code, why)
            return
        outbox = self._hub.join(connection)
        self.clockwork.audience = len(self._hub)
        self._log("joined", clients=len(self._hub))
        why, delivery = "closed", None
        try:
            await connection.send(self._hello)
            self.clockwork.submit(Greet())
            delivery = asyncio.create_task(
                self._deliver(connection, outbox.deliver(self._settings.patience_s))
            )
            await self._listen_to(connection, outbox)
        except ConnectionClosed:
            pass
        except ProtocolError as error:
            why = f"made no sense: {error}"
            await connection.close(1008, "too many messages that make no sense")
        finally:
            if delivery is not None:
                delivery.cancel()
            self._hub.leave(connection)
            self.clockwork.audience = len(self._hub)
            self._log("left", why=why, missed=outbox.missed, clients=len(self._hub))

    async def _deliver(self, connection: ServerConnection, delivery: Any) -> None:
        try:
            await delivery
        except TimeoutError:
            connection.transport.abort()
        except ConnectionClosed:
            pass

    async def _listen_to(self, connection: ServerConnection, outbox: Outbox) -> None:
        """Take a page's messages, no faster than it may send them."""
        pace, holds = Pace(self._settings.max_rate), False

        def decline(error: NsdePolicyError) -> None:
            with contextlib.suppress(RuntimeError):  # nobody listens any more
                self._loop.call_soon_threadsafe(self._decline, outbox, error)

        try:
            async for data in connection:
                try:
                    command = parse(data)
                except ProtocolError as error:
                    self._decline(outbox, error)
                else:
                    holds = isinstance(command, Hold | Aim) or (holds and not isinstance(command, Release))
                    self.clockwork.submit(command, decline)
                if outbox.nonsense >= MALFORMED:
                    raise ProtocolError(f"{outbox.nonsense} messages, this one among them: {data[:80]!r}")
                if wait_s := pace.wait_s(self._loop.time()):
                    await asyncio.sleep(wait_s)
                if connection.state is not State.OPEN:  # what it left behind in a hurry counts no more
                    return
        finally:
            if holds:  # a hand whose page is gone lets go
                self.clockwork.submit(Release())

    def _decline(self, outbox: Outbox, error: NsdePolicyError) -> None:
        """Tell one page why what it asked for is not done."""
        if isinstance(error, ProtocolError):
            outbox.nonsense += 1
            self._log("nonsense", error=str(error))
        outbox.put("notice", notice(error))

    def _note_stray_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._log("error", message=context["message"], error=describe(error) if error else None)
