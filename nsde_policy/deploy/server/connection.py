"""Websocket connections with limits on their number and on buffered data."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Request, Response
from websockets.protocol import Event, State

from nsde_policy.deploy.server.auth import EventLogHandler, Log

HALF_OPEN = 16
"""Sockets that may be before or after their websocket phase, in addition to `max_clients`."""
MAX_FRAGMENTS = 64
"""Largest number of fragments of a message."""


class ConnectionLimiter:
    """Open sockets of one server; beyond the limit, the oldest that is not an open websocket is closed."""

    def __init__(self, max_clients: int, buffer: int) -> None:
        self.buffer = buffer
        """Bytes that may wait to be read by one client."""
        self._limit = max_clients + HALF_OPEN
        self._open: dict[LimitedConnection, None] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._open)

    def create_connection(self, *args: Any, **options: Any) -> "LimitedConnection":
        """Create a connection, for `serve(create_connection=…)`."""
        return LimitedConnection(self, *args, **options)

    def add(self, connection: "LimitedConnection") -> None:
        """Count a socket from its first byte; close the oldest half-open one if there are too many."""
        self._open[connection] = None
        if len(self._open) > self._limit:
            oldest = next(c for c in self._open if c.state is not State.OPEN)
            oldest.transport.abort()
            self.remove(oldest)  # at once: `abort` calls `connection_lost` later

    def remove(self, connection: "LimitedConnection") -> None:
        """Stop counting a socket that is closed."""
        self._open.pop(connection, None)


class LimitedConnection(ServerConnection):
    """Server connection that is closed if its client does not read, or sends too many fragments."""

    def __init__(self, limiter: ConnectionLimiter, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limiter, self._fragments = limiter, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        super().connection_made(transport)
        self._limiter.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        super().connection_lost(exc)
        self._limiter.remove(self)

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
    """Start a websocket server with limited connections.

    Args:
        handle_client: Runs for each client until its connection ends.
        handle_http: Returns the response to a plain HTTP request, or None to open a websocket.
        host: Address to listen on.
        port: Port to listen on, 0 for a free one.
        limiter: Limits of the connections.
        log: Receives the warnings of websockets.
        patience_s: Timeout of handshakes and pings, seconds.
        options: Further arguments of websockets' `serve`.
    """
    logger = logging.Logger("websockets", logging.WARNING)  # not registered: it serves this server only
    logger.addHandler(EventLogHandler(log))
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
        create_connection=limiter.create_connection,  # type: ignore[arg-type]  # class or wrapper
        **options,
    )
