"""A websocket connection that counts from its first byte, and cannot be made to buffer at will."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Request, Response
from websockets.protocol import Event, State

from nsde_policy.deploy.server.auth import Log, LogHandler

HALF_OPEN = 16
"""Connections that may be on their way in, beside those that are in."""
FRAGMENTS = 64
"""Parts a message may come in."""


class Sockets:
    """The sockets of one server; where there are too many, the oldest without a purpose has to go."""

    def __init__(self, max_clients: int, buffer: int) -> None:
        self.buffer = buffer
        """Bytes that may wait to be read by one client."""
        self._most = max_clients + HALF_OPEN
        self._open: dict[GuardedConnection, None] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._open)

    def connection(self, *args: Any, **options: Any) -> "GuardedConnection":
        """For `serve(create_connection=…)`."""
        return GuardedConnection(self, *args, **options)

    def admit(self, new: "GuardedConnection") -> None:
        """Count a socket; the oldest that has not said what it wants, or is on its way out, makes room."""
        self._open[new] = None
        if len(self._open) > self._most:
            oldest = next(c for c in self._open if c.state is not State.OPEN)
            oldest.transport.abort()
            self.forget(oldest)  # now: abort tells it only later

    def forget(self, gone: "GuardedConnection") -> None:
        """A socket is closed."""
        self._open.pop(gone, None)


class GuardedConnection(ServerConnection):
    """One of them."""

    def __init__(self, sockets: Sockets, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sockets, self._fragments = sockets, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It counts from now on."""
        super().connection_made(transport)
        self._sockets.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It no longer counts."""
        super().connection_lost(exc)
        self._sockets.forget(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came in; who never reads what goes out is let go."""
        super().data_received(data)
        if self.transport.get_write_buffer_size() > self._sockets.buffer:  # pings whose pongs nobody reads
            self.transport.abort()

    def process_event(self, event: Event) -> None:
        """A frame came in; a message in too many parts ends the connection."""
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            self._fragments = 0 if event.fin else self._fragments + 1
            if self._fragments > FRAGMENTS:  # empty ones count for nothing in the size of a message
                self.transport.abort()
                return
        super().process_event(event)


async def listen(
    converse: Callable[[ServerConnection], Awaitable[None]],
    door: Callable[[ServerConnection, Request], Response | None],
    host: str,
    port: int,
    *,
    sockets: Sockets,
    log: Log,
    patience_s: float,
    **options: Any,
) -> Server:
    """Open a server of guarded connections; other `options` are those of websockets' `serve`."""
    logger = logging.Logger("websockets", logging.WARNING)  # of this server alone
    logger.addHandler(LogHandler(log))
    return await serve(
        converse,
        host,
        port,
        compression=None,
        process_request=door,
        open_timeout=patience_s,
        ping_interval=patience_s,
        ping_timeout=patience_s,
        close_timeout=min(patience_s, 1.0),
        logger=logger,
        create_connection=sockets.connection,  # type: ignore[arg-type]  # class or wrapper
        **options,
    )
