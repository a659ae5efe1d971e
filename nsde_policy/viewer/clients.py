"""A connected page, with a send queue that cannot grow."""

import asyncio
from typing import Literal, get_args

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

MessageType = Literal["state", "frame", "notice"]
"""Types of messages to clients, in the order in which they are sent."""


class Client:
    """A websocket connection and its send queue, which holds the newest message of each type.

    A client that reads slowly misses frames.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._queue: dict[MessageType, str] = {}
        self._queued = asyncio.Event()
        self.missed = 0
        """Messages that were replaced before they could be sent."""
        self.invalid = 0
        """Invalid messages received from this client."""

    def put(self, kind: MessageType, text: str) -> None:
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
                for kind in get_args(MessageType):
                    if (text := self._queue.pop(kind, None)) is not None:
                        async with asyncio.timeout(timeout_s):
                            await self._connection.send(text)
        except TimeoutError:
            self._connection.transport.abort()
        except ConnectionClosed:
            pass
