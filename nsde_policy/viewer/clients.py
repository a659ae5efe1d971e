"""Those who look on: each has an outbox with room for the newest frame, and no more."""

import asyncio

from websockets.asyncio.server import ServerConnection

from nsde_policy.viewer.loop import Kind

_ORDER: tuple[Kind, ...] = ("state", "frame", "notice")


class Outbox:
    """What one page has not been sent yet: one message of each kind, the newest.

    A page that reads slowly misses frames; what waits for it never grows.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._waiting: dict[Kind, str] = {}
        self._something = asyncio.Event()
        self.missed = 0
        """Messages that were replaced before they could be sent."""
        self.nonsense = 0
        """Messages of this page that made no sense."""

    def put(self, kind: Kind, text: str) -> None:
        """Have it sent, in place of an older one."""
        self.missed += kind in self._waiting
        self._waiting[kind] = text
        self._something.set()

    async def deliver(self, patience_s: float) -> None:
        """Send what comes, until the page is gone; one that does not read for so long has to go."""
        while True:
            await self._something.wait()
            self._something.clear()
            for kind in _ORDER:
                if (text := self._waiting.pop(kind, None)) is not None:
                    async with asyncio.timeout(patience_s):
                        await self._connection.send(text)


class Hub:
    """All outboxes."""

    def __init__(self) -> None:
        self._outboxes: dict[ServerConnection, Outbox] = {}

    def __len__(self) -> int:
        return len(self._outboxes)

    def join(self, connection: ServerConnection) -> Outbox:
        """Somebody new."""
        self._outboxes[connection] = Outbox(connection)
        return self._outboxes[connection]

    def leave(self, connection: ServerConnection) -> None:
        """Somebody has gone."""
        self._outboxes.pop(connection, None)

    def publish(self, kind: Kind, text: str) -> None:
        """Tell everybody; waits for nobody."""
        for outbox in self._outboxes.values():
            outbox.put(kind, text)
