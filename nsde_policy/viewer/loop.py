"""Simulation thread: ticks the app at a fixed rate, independent of the number of clients."""

import threading
import time
from collections.abc import Callable

from nsde_policy.errors import NsdePolicyError

from . import messages
from .app import App

Publish = Callable[[messages.MessageType, str], None]
"""Sends a message to all clients; must not block."""
ReportError = Callable[[NsdePolicyError], None]
"""Tells the sender of a message why it failed; must not block."""

FRAME_S = 1 / 30
"""Shortest time between two frames, at any speed."""


class SimulationThread(threading.Thread):
    """Thread that runs an app, handles queued messages between control periods and publishes frames.

    Simulated time begins with the first message, which the server sends when the first client is there.

    The queue holds one message per `queue_key`, the newest, so that no client can make it grow.
    """

    def __init__(self, app: App, publish: Publish) -> None:
        super().__init__(name="nsde-policy-viewer", daemon=True)
        self._app, self._publish = app, publish
        self._queue: dict[tuple[str, ...], tuple[messages.ClientMessage, ReportError]] = {}
        self._wake = threading.Condition()
        self._stopping = False
        self.clients = 0
        """Connected clients; without any, no frames are made."""
        self.failure: BaseException | None = None
        """Exception that ended the thread, if any."""
        self.on_failure: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """End the thread after the current control period, and wait for it."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self.is_alive():
            self.join()

    def submit(self, message: messages.ClientMessage, report: ReportError = lambda error: None) -> None:
        """Queue a message from any thread without blocking; `report` is called in the simulation thread."""
        with self._wake:
            self._queue.pop(message.queue_key, None)  # the newest message goes to the end of the queue
            self._queue[message.queue_key] = message, report
            self._wake.notify()

    def run(self) -> None:
        """Run the app until `stop`; called by `start`."""
        try:
            self._loop()
        except BaseException as error:  # any exception must stop the server
            self.failure = error
            self.on_failure()

    def _loop(self) -> None:
        app, clock = self._app, time.monotonic
        with self._wake:  # or an episode would be over before the page is open
            self._wake.wait_for(lambda: self._queue or self._stopping)
        due, shown, revision, changed = clock() + app.period_s, 0.0, -1, False
        while (queued := self._wait(min(due, shown + FRAME_S) if changed else due)) is not None:
            for message, report in queued:
                try:
                    app.handle(message)
                    changed = True
                except NsdePolicyError as error:
                    report(error)
            if clock() >= due:
                changed |= bool(self._notify_on_error(app.tick))
                due = max(due + app.period_s, clock())
            due = min(due, clock() + app.period_s)  # the speed may have changed
            if revision != app.revision:
                revision = app.revision
                self._send("state", app.state)
            if changed and clock() >= shown + FRAME_S:
                shown, changed = clock(), False
                self._send("frame", app.frame)

    def _wait(self, until: float) -> list[tuple[messages.ClientMessage, ReportError]] | None:
        """Wait for messages until a time and return them; None after `stop`."""
        with self._wake:
            if not self._queue and not self._stopping:
                self._wake.wait(max(0.0, until - time.monotonic()))
            queued, self._queue = [*self._queue.values()], {}
            return None if self._stopping else queued

    def _notify_on_error(self, action: Callable[[], object]) -> object:
        try:
            return action()
        except NsdePolicyError as error:
            self._publish("notice", messages.encode_notice(error))
            return None

    def _send(self, kind: messages.MessageType, make: Callable[[], messages.PageMessage]) -> None:
        if self.clients:
            self._notify_on_error(lambda: self._publish(kind, messages.encode_message(make())))
