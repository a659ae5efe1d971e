"""Files that are made once for all test processes."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def make_once(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Fill a folder in the first test process that needs it; the others wait for it."""
    finished = folder / "finished"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            folder.mkdir()
            fill(folder)
            finished.touch()
    return folder
