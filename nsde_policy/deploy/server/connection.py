"""Websocket connections with limits on their number and on buffered data."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Request, Response
from websockets.protocol import Event

from nsde_policy.deploy.server.auth import EventLogHandler, Log, format_error
from nsde_policy.deploy.server.config import ServerSettings
from nsde_policy.errors import ConfigError, summarize_error

MAX_FRAGMENTS = 64
"""Largest number of fragments of a message."""


class LimitedConnection(ServerConnection):
    """Server connection that is closed if its client does not read, or sends too many fragments.

    It counts from the moment it is accepted, before TLS; asyncio's own servers start TLS first and keep any
    number of sockets that do not finish it.
    """

    accepted: asyncio.Transport
    """Transport of the TCP connection, below TLS."""
    address: str
    """Address of the client, as `group_address` returns it."""

    def __init__(self, owner: "LimitedServer", *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._owner, self._fragments, self._is_open = owner, 0, False
        self._early: list[bytes] = []  # data that arrived with the end of the TLS handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and start TLS or the websocket handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.accepted = transport
        self.address = group_address((transport.get_extra_info("peername") or ("gone",))[0])
        self._owner.add_pending(self)
        if self._owner.tls is None:
            self._open(transport)
        else:
            self._tls_task = self.loop.create_task(self._start_tls(self._owner.tls))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection, which is closed."""
        self._owner.pending.pop(self, None)
        if self._is_open:  # otherwise it ended within the TLS handshake
            super().connection_lost(exc)

    def eof_received(self) -> None:
        """Close the connection if the client closes its side."""
        if self._is_open:
            super().eof_received()

    def data_received(self, data: bytes) -> None:
        """Receive bytes; close the connection if too many bytes wait to be read by the client."""
        if not self._is_open:
            self._early.append(data)
            return
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

    def _open(self, transport: asyncio.Transport) -> None:
        self._is_open = True
        super().connection_made(transport)
        for data in self._early:
            self.data_received(data)
        self._early.clear()

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        error = "the client has left"
        try:
            transport = await self.loop.start_tls(
                self.accepted,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._owner.handshake_timeout_s,
            )
        except OSError as failure:  # no TLS, no common version, or the client refuses the certificate
            transport, error = None, summarize_error(failure)
        if transport is None or transport.is_closing():
            self._owner.pending.pop(self, None)
            self.accepted.abort()
            self._owner.report_failed_tls(self, error)
        else:
            self._open(transport)


class LimitedServer:
    """Websocket server with limited connections, which runs until `stop`.

    A connection is pending until `_admit` makes it a client, and again while it closes. The number of pending
    connections is limited; beyond it, the address with most of them loses its oldest. So a flood closes its
    own connections first, and a newcomer needs only be faster than `max_pending` others of its address.

    Args:
        settings: Address and limits.
        log: Receives events and the warnings of websockets.
        buffer: Bytes that may wait to be read by one client.
    """

    def __init__(self, settings: ServerSettings, log: Log, *, buffer: int) -> None:
        self._log, self._address, self.buffer = log, settings, buffer
        self.tls, self.handshake_timeout_s = settings.tls, settings.patience_s
        self.pending: dict[LimitedConnection, None] = {}
        """Connections that are not clients, in order of arrival."""
        self.client_count = 0
        """Number of connections that are clients."""

    def stop(self) -> None:
        """Close all connections and return from `run`; from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)

    def add_pending(self, connection: LimitedConnection) -> None:
        """Count a connection as pending; close another one if there are too many."""
        self.pending[connection] = None
        if len(self.pending) > self._address.max_pending:
            ((most, _),) = Counter(each.address for each in self.pending).most_common(1)
            oldest = next(each for each in self.pending if each.address == most)
            del self.pending[oldest]  # at once: `abort` calls `connection_lost` later
            oldest.accepted.abort()

    def report_failed_tls(self, connection: LimitedConnection, error: str) -> None:
        """Log that a connection ended within the TLS handshake."""
        self._log("tls_failed", peer=connection.address, error=error)

    @contextlib.contextmanager
    def _admit(self, connection: ServerConnection) -> Iterator[None]:
        """Make a connection a client within the block."""
        assert isinstance(connection, LimitedConnection)
        self.pending.pop(connection, None)
        self.client_count += 1
        try:
            yield
        finally:
            self.client_count -= 1
            if not connection.accepted.is_closing():
                self.add_pending(connection)

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
            try:
                yield int(server.sockets[0].getsockname()[1])
            finally:
                for connection in [*self.pending]:  # Python 3.12 would wait for them
                    connection.accepted.abort()

    def _log_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._log("error", message=context["message"], error=format_error(context.get("exception")))


def group_address(host: str) -> str:
    """Return an address, or the /64 network of an IPv6 address, since one machine can use all of it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, ipaddress.IPv6Address) or address.is_loopback:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address.packed, 64), strict=False))


def _explain_listen_error(error: Exception, settings: ServerSettings) -> str:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
        return f"cannot listen on {settings.host}:{settings.port}: {why}; try --port 0"
    return (
        f"cannot listen on {settings.host}, which is not an address of this machine: {why}; "
        "try --host 127.0.0.1"
    )
