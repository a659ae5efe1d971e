"""The one thread that runs a stage: on time, whoever looks on, however much they ask for."""

import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any, Literal

from nsde_policy.errors import NsdePolicyError
from nsde_policy.viewer.app import Stage
from nsde_policy.viewer.messages import Command, encode, notice

Kind = Literal["state", "frame", "notice"]
Publish = Callable[[Kind, str], None]
"""Told what is new; must not wait for anybody."""
Decline = Callable[[NsdePolicyError], None]
"""Told why a command cannot be followed; must not wait for anybody."""

FRAME_S = 1 / 30
"""Frames are published no faster than this, whatever the speed."""
_KEPT = 3000


class Clockwork:
    """Ticks a stage at its own pace, does what pages ask for in between, and publishes what came of it.

    Commands wait in a box that holds one of each kind, the newest: it cannot grow, and a page that asks for
    the same thing a thousand times has asked for it once.
    """

    def __init__(
        self, stage: Stage, publish: Publish, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stage, self._publish, self._clock = stage, publish, clock
        self._box: dict[tuple[str, ...], tuple[Command, Decline]] = {}
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="nsde-policy-viewer", daemon=True)
        self._late: deque[float] = deque(maxlen=_KEPT)
        self._worked: deque[float] = deque(maxlen=_KEPT)
        self.audience = 0
        """People who look on; without any, nothing is drawn."""
        self.periods = 0
        """Control periods so far."""
        self.failure: BaseException | None = None
        """What ended it, where that was no `stop`."""
        self.on_failure: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the control period that is under way."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, command: Command, decline: Decline = lambda error: None) -> None:
        """Ask for something; from any thread, and without waiting. The stage's thread calls `decline`."""
        with self._wake:
            self._box.pop(command.kind, None)
            self._box[command.kind] = command, decline  # behind those that came before
            self._wake.notify()

    def timing(self) -> dict[str, float]:
        """How late control periods began, and how long they took, milliseconds."""
        late, worked = sorted(self._late) or [0.0], list(self._worked) or [0.0]
        return {
            "periods": self.periods,
            "late_ms": round(1e3 * median(late), 3),
            "late_p99_ms": round(1e3 * late[int(0.99 * (len(late) - 1))], 3),
            "work_ms": round(1e3 * median(worked), 3),
        }

    def forget_timing(self) -> None:
        """Begin to measure anew."""
        self._late.clear()
        self._worked.clear()

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # of any kind: somebody has to be told
            self.failure = error
            self.on_failure()

    def _loop(self) -> None:
        due, shown, told, stale = self._clock() + self._stage.period_s, 0.0, -1, False
        while (commands := self._next(min(due, shown + FRAME_S) if stale else due)) is not None:
            for command, decline in commands:
                stale |= self._followed(command, decline)
            now = self._clock()
            if now >= due:
                self.periods += 1
                stale |= bool(self._guarded(self._stage.tick))
                self._late.append(now - due)
                self._worked.append(self._clock() - now)
                due = max(due + self._stage.period_s, self._clock())
            due = min(due, self._clock() + self._stage.period_s)  # the speed may have changed
            if told != self._stage.revision:
                told = self._stage.revision
                self._show("state", self._stage.state)
            if stale and self._clock() >= shown + FRAME_S:
                shown, stale = self._clock(), False
                self._show("frame", self._stage.frame)

    def _next(self, until: float) -> list[tuple[Command, Decline]] | None:
        """What has been asked for by now, or else by `until`; None at the end."""
        with self._wake:
            if not self._box and not self._stopping:
                self._wake.wait(max(0.0, until - self._clock()))
            commands, self._box = [*self._box.values()], {}
            return None if self._stopping else commands

    def _followed(self, command: Command, decline: Decline) -> bool:
        try:
            self._stage.handle(command)
        except NsdePolicyError as error:
            decline(error)
            return False
        return True

    def _guarded(self, action: Callable[[], object]) -> object:
        try:
            return action()
        except NsdePolicyError as error:
            self._publish("notice", notice(error))
            return None

    def _show(self, kind: Kind, what: Callable[[], dict[str, Any]]) -> None:
        if self.audience:
            self._guarded(lambda: self._publish(kind, encode(what())))
