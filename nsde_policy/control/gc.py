"""Keep Python's garbage collector from pausing a control loop.

A full collection visits every object while all threads wait: a tenth of a second with torch loaded.
`gc.freeze` excludes the objects that exist before the loop starts.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_freeze_lock = threading.Lock()
_active_freezes = 0


@contextmanager
def freeze_objects() -> Iterator[None]:
    """Collect garbage once and exclude all existing objects from collection until the block ends.

    Blocks may overlap; the last one unfreezes. A program that has called `gc.freeze` itself is left alone.
    """
    global _active_freezes
    with _freeze_lock:
        is_ours = _active_freezes > 0 or not gc.get_freeze_count()
        if is_ours and not _active_freezes:
            gc.collect()
            gc.freeze()
        _active_freezes += is_ours
    try:
        yield
    finally:
        with _freeze_lock:
            _active_freezes -= is_ours
            if is_ours and not _active_freezes:
                gc.unfreeze()
