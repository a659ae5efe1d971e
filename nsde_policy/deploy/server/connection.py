"""Websocket connections with limits on their number and on buffered data."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Request, Response
from websockets.protocol import Event, State

from nsde_policy.deploy.server.auth import EventLogHandler, Log, format_error

HALF_OPEN = 16
"""Sockets that may be before or after their websocket phase, in addition to `max_clients`."""
MAX_FRAGMENTS = 64
"""Largest number of fragments of a message."""


@dataclass
class ConnectionLimiter:
    """Open sockets of one server; beyond the limit, the oldest that is not an open websocket is closed."""

    max_clients: int
    buffer: int
    """Bytes that may wait to be read by one client."""
    sockets: dict["LimitedConnection", None] = field(default_factory=dict)
    """The open sockets in order of arrival."""


class LimitedConnection(ServerConnection):
    """Server connection that is closed if its client does not read, or sends too many fragments."""

    def __init__(self, limiter: ConnectionLimiter, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limiter, self._fragments = limiter, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the socket from its first byte; close the oldest half-open one if there are too many."""
        super().connection_made(transport)
        sockets = self._limiter.sockets
        sockets[self] = None
        if len(sockets) > self._limiter.max_clients + HALF_OPEN:
            oldest = next(each for each in sockets if each.state is not State.OPEN)
            oldest.transport.abort()
            del sockets[oldest]  # at once: `abort` calls `connection_lost` later

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the socket, which is closed."""
        super().connection_lost(exc)
        self._limiter.sockets.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Receive bytes; close the connection if too many bytes wait to be read by the client."""
        super().data_received(data)
        if self.transport.get_write_buffer_size() > self._limiter.buffer:  # pongs that the client never reads
            self.transport.abort()

    def process_event(self, event: Event) -> None:
        """Process a frame; close the connection if a message has too many fragments."""
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            self._fragments = 0 if event.fin else self._fragments + 1
            if self._fragments > MAX_FRAGMENTS:  # empty fragments do not count towards the size limit
                self.transport.abort()
                return
        super().process_event(event)


async def listen(
    handle_client: Callable[[ServerConnection], Awaitable[None]],
    handle_http: Callable[[ServerConnection, Request], Response | None],
    host: str,
    port: int,
    *,
    limiter: ConnectionLimiter,
    log: Log,
    patience_s: float,
    **options: Any,
) -> Server:
    """Start a websocket server with limited connections; also log the errors of the event loop.

    Args:
        handle_client: Runs for each client until its connection ends.
        handle_http: Returns the response to a plain HTTP request, or None to open a websocket.
        host: Address to listen on.
        port: Port to listen on, 0 for a free one.
        limiter: Limits of the connections.
        log: Receives the warnings of websockets, and errors.
        patience_s: Timeout of handshakes and pings, seconds.
        options: Further arguments of websockets' `serve`.
    """
    logger = logging.Logger("websockets", logging.WARNING)  # not registered: it serves this server only
    logger.addHandler(EventLogHandler(log))
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: log(
            "error", message=context["message"], error=format_error(context.get("exception"))
        )
    )
    return await serve(
        handle_client,
        host,
        port,
        compression=None,
        process_request=handle_http,
        open_timeout=patience_s,
        ping_interval=patience_s,
        ping_timeout=patience_s,
        close_timeout=min(patience_s, 1.0),
        logger=logger,
        create_connection=partial(LimitedConnection, limiter),  # type: ignore[arg-type]  # class or wrapper
        **options,
    )
