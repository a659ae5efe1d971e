"""Fair queue of plan requests: shares one planner between addresses, and each share between connections."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from nsde_policy.core.pause import run_at_pauses

Answer = TypeVar("Answer")


class ClientKey(NamedTuple):
    """Identity of a client in the queue."""

    address: str
    """Machine or network that the client connects from; its connections divide one share."""
    connection: int
    """Number of the connection."""


@dataclass
class _Request:
    """Request that waits for the planner."""

    client: ClientKey
    function: Callable[[], Any]
    cost: int
    expires: float
    future: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        """Make the plan, or set the exception, on the future."""
        try:
            self.future.set_result(self.function())
        except BaseException as error:  # belongs to the request, not to this thread
            self.future.set_exception(error)


@dataclass
class _Share:
    """Use of the planner by an address or by a connection."""

    used: int = 0
    """Total cost so far, raised towards the parent's `floor` after a pause, so that credit is limited."""
    floor: int = 0
    """Largest `used` of a part at the time it was served."""
    parts: "dict[str | int, _Share]" = field(default_factory=dict)

    def enter(self, name: str | int, credit: int) -> "_Share":
        """Return the part of a request; a new part starts behind all others: reconnecting gains nothing."""
        if name not in self.parts:
            self.parts[name] = _Share(max((part.used for part in self.parts.values()), default=self.floor))
        part = self.parts[name]
        part.used = max(part.used, self.floor - credit)
        return part

    def charge(self, name: str | int, cost: int) -> "_Share":
        """Add the cost of a request that starts now, and return the part that it belongs to."""
        part = self.parts[name]
        self.floor = max(self.floor, part.used)
        part.used += cost
        return part


class FairQueue:
    """Thread-safe queue that runs the request whose client will then have used the planner least.

    Fair queueing (Demers, Keshav and Shenker, 1989; virtual time as of Goyal, Vin and Cheng, 1996) on two
    levels: addresses have equal shares of the planner, connections of one address have equal shares of its
    share. Each client has at most one waiting request. A client that asks for less than its share waits for
    the rest of one plan at most, or until its next pause point if it has some (`nsde_policy.core.pause`).

    Args:
        credit: Cost of the plans that a client may make up for after a pause.
        clock: Monotonic time in seconds, the same as that of `expires`.
    """

    def __init__(self, credit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._credit, self._clock, self._lock = credit, clock, threading.Lock()
        self._waiting: dict[ClientKey, _Request] = {}
        self._root = _Share()

    def submit(
        self, client: ClientKey, function: Callable[[], Answer], *, cost: int, expires: float
    ) -> Future[Answer]:
        """Queue a request; `run_next` must be called once for it.

        Args:
            client: Whose share is charged.
            function: Makes the plan, in the thread that calls `run_next`.
            cost: Charge for the plan, actions.
            expires: Time from which on the request is stale, seconds: its future is cancelled, unplanned.
        """
        request = _Request(client, function, cost, expires)
        with self._lock:
            self._waiting.pop(client, None)  # the new one is the last to arrive
            self._waiting[client] = request
            self._root.enter(client.address, self._credit).enter(client.connection, self._credit)
        return request.future

    def run_next(self) -> None:
        """Run the next request that is neither cancelled nor stale, if there is one."""
        if (request := self._take()) is not None:
            with run_at_pauses(lambda: self._run_urgent(request.client)):
                request.run()

    def forget(self, client: ClientKey) -> None:
        """Remove a client that has disconnected, and its request if it has not started."""
        with self._lock:
            if request := self._waiting.pop(client, None):
                request.future.cancel()
            if (address := self._root.parts.get(client.address)) is not None:
                address.parts.pop(client.connection, None)
                if not address.parts:
                    del self._root.parts[client.address]

    def _run_urgent(self, running: ClientKey) -> None:
        """Run the requests that should end before the one that is running now."""
        while self._waiting and (request := self._take(running)) is not None:
            request.run()

    def _take(self, running: ClientKey | None = None) -> _Request | None:
        with self._lock:
            while self._waiting:
                request = self._choose()
                client = request.client
                if running is not None and not self._precedes(request, running):
                    return None
                del self._waiting[client]
                if self._clock() >= request.expires:
                    request.future.cancel()
                elif request.future.set_running_or_notify_cancel():
                    self._root.charge(client.address, request.cost).charge(client.connection, request.cost)
                    return request
        return None

    def _choose(self) -> _Request:
        """Return the next request: the best of the best of each address; of equals the first to arrive."""
        best: dict[str, _Request] = {}
        for request in self._waiting.values():
            other = best.setdefault(request.client.address, request)
            if self._rank_connection(request) < self._rank_connection(other):
                best[request.client.address] = request
        return min(best.values(), key=self._rank_address)

    def _rank_address(self, request: _Request) -> int:
        return self._root.parts[request.client.address].used + request.cost

    def _rank_connection(self, request: _Request) -> int:
        client = request.client
        return self._root.parts[client.address].parts[client.connection].used + request.cost

    def _precedes(self, request: _Request, running: ClientKey) -> bool:
        """Return whether a client, with its request, will have used less than that of the running one."""
        if (address := self._root.parts.get(running.address)) is None:
            return True  # the client of the running request has disconnected
        if request.client.address != running.address:
            return self._rank_address(request) < address.used
        other = address.parts.get(running.connection)
        return other is None or self._rank_connection(request) < other.used
