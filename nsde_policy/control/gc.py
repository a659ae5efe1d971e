"""Keep Python's garbage collector from pausing a control loop.

A full collection visits every object while all threads wait: a tenth of a second with torch loaded.
`gc.freeze` excludes the objects that exist before the loop starts.
"""

import gc
import threading


class GarbageFreezer:
    """Freezes existing objects while at least one session is open, unless the program froze them itself."""

    def __init__(self) -> None:
        self._lock, self._users, self._frozen = threading.Lock(), 0, False

    def freeze(self) -> None:
        """Collect garbage once, then freeze all objects; objects created later are collected as usual."""
        with self._lock:
            self._users += 1
            if self._users == 1 and not gc.get_freeze_count():
                gc.collect()
                gc.freeze()
                self._frozen = True

    def unfreeze(self) -> None:
        """Unfreeze all objects when the last session closes."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._frozen:
                gc.unfreeze()
                self._frozen = False


garbage_freezer = GarbageFreezer()
