"""Websocket server that runs until it is stopped; base of the policy server and the viewer."""

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from nsde_policy.errors import ConfigError

from .settings import ServerSettings

_websockets_logger = logging.getLogger(__name__)
_websockets_logger.setLevel(logging.WARNING)
# Whoever connects with something else than a websocket causes it, with a traceback.
_websockets_logger.addFilter(lambda record: record.getMessage() != "opening handshake failed")


class WebsocketServer:
    """Websocket server on one port."""

    patience_s: float = 5.0
    """Timeout for a client's greeting, ping reply and reads, and for the last plan at exit, seconds."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings

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
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            server = await serve(
                handle_client,
                settings.host,
                settings.port,
                compression=None,
                process_request=handle_http,
                open_timeout=self.patience_s,
                ping_interval=self.patience_s,
                ping_timeout=self.patience_s,
                close_timeout=min(self.patience_s, 1.0),
                logger=_websockets_logger,
                **options,
            )
        except (OSError, ValueError) as error:  # ValueError: a host name or flag that the system cannot use
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            advice = f"{why}; try --host 127.0.0.1 or --port 0"
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                advice = "another program uses this port; --port 0 picks a free one"
            raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {advice}") from None
        async with server:
            yield int(server.sockets[0].getsockname()[1])
