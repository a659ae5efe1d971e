"""Websocket connections with limits on their number and on buffered data."""

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Request, Response
from websockets.protocol import Event, State

from nsde_policy.deploy.server.auth import EventLogHandler, Log, format_error
from nsde_policy.deploy.server.config import ServerSettings
from nsde_policy.errors import ConfigError

HALF_OPEN = 16
"""Sockets that may be before or after their websocket phase, in addition to `max_clients`."""
MAX_FRAGMENTS = 64
"""Largest number of fragments of a message."""


class LimitedConnection(ServerConnection):
    """Server connection that is closed if its client does not read, or sends too many fragments."""

    def __init__(self, owner: "LimitedServer", *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._owner, self._fragments = owner, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the socket from its first byte; beyond the limit, close the oldest that is half-open."""
        super().connection_made(transport)
        sockets = self._owner.sockets
        sockets[self] = None
        if len(sockets) > self._owner.max_sockets:
            oldest = next(each for each in sockets if each.state is not State.OPEN)
            oldest.transport.abort()
            del sockets[oldest]  # at once: `abort` calls `connection_lost` later

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the socket, which is closed."""
        super().connection_lost(exc)
        self._owner.sockets.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Receive bytes; close the connection if too many bytes wait to be read by the client."""
        super().data_received(data)
        if self.transport.get_write_buffer_size() > self._owner.buffer:  # pongs that the client never reads
            self.transport.abort()

    def process_event(self, event: Event) -> None:
        """Process a frame; close the connection if a message has too many fragments."""
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            self._fragments = 0 if event.fin else self._fragments + 1
            if self._fragments > MAX_FRAGMENTS:  # empty fragments do not count towards the size limit
                self.transport.abort()
                return
        super().process_event(event)


class LimitedServer:
    """Websocket server with limited connections, which runs until `stop`.

    Args:
        settings: Address and limits.
        log: Receives events and the warnings of websockets.
        buffer: Bytes that may wait to be read by one client.
    """

    def __init__(self, settings: ServerSettings, log: Log, *, buffer: int) -> None:
        self._log, self._address, self.buffer = log, settings, buffer
        self.max_sockets = settings.max_clients + HALF_OPEN
        self.sockets: dict[LimitedConnection, None] = {}
        """Open sockets in order of arrival."""

    def stop(self) -> None:
        """Close all connections and return from `run`; from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)

    @contextlib.asynccontextmanager
    async def _listen(
        self,
        handle_client: Callable[[ServerConnection], Awaitable[None]],
        handle_http: Callable[[ServerConnection, Request], Response | None],
        **options: Any,
    ) -> AsyncIterator[int]:
        """Accept connections within the block, and yield the port.

        Args:
            handle_client: Runs for each client until its connection ends.
            handle_http: Returns the response to a plain HTTP request, or None to open a websocket.
            options: Further arguments of websockets' `serve`.
        """
        settings = self._address
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._log_loop_error)
        logger = logging.Logger("websockets", logging.WARNING)  # not registered: it serves this server only
        logger.addHandler(EventLogHandler(self._log))
        try:
            server = await serve(
                handle_client,
                settings.host,
                settings.port,
                compression=None,
                process_request=handle_http,
                max_size=settings.max_message,
                open_timeout=settings.patience_s,
                ping_interval=settings.patience_s,
                ping_timeout=settings.patience_s,
                close_timeout=min(settings.patience_s, 1.0),
                logger=logger,
                create_connection=partial(LimitedConnection, self),  # type: ignore[arg-type]
                **options,
            )
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            raise ConfigError(_explain_listen_error(error, settings)) from None
        async with server:
            yield int(server.sockets[0].getsockname()[1])

    def _log_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._log("error", message=context["message"], error=format_error(context.get("exception")))


def _explain_listen_error(error: Exception, settings: ServerSettings) -> str:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
        return f"cannot listen on {settings.host}:{settings.port}: {why}; try --port 0"
    return (
        f"cannot listen on {settings.host}, which is not an address of this machine: {why}; "
        "try --host 127.0.0.1"
    )
