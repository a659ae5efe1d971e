"""Python's garbage collector, kept from stopping a control loop.

Now and then Python looks through every object there is, and no thread runs meanwhile: for a tenth of a second
where torch is loaded. What was there before the loop began need not be looked through again.
"""

import gc
import threading


class _Aside:
    """Counts who wants older objects left alone, so that sessions may overlap."""

    def __init__(self) -> None:
        self._lock, self._users, self._ours = threading.Lock(), 0, False

    def begin(self) -> None:
        """Collect once, then set everything aside; what comes later is collected as ever."""
        with self._lock:
            self._users += 1
            if self._users == 1 and not gc.get_freeze_count():  # else the program does so itself
                gc.collect()
                gc.freeze()
                self._ours = True

    def end(self) -> None:
        """Let the collector look through everything again, once nobody minds."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._ours:
                gc.unfreeze()
                self._ours = False


older_objects = _Aside()
"""Of this process."""
