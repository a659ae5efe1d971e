"""Files that are made once for all test processes."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nsde_policy.errors import DemoError
from nsde_policy.files import lock_directory


def make_once(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Fill a folder in the first test process that needs it; the others wait for it."""
    finished = folder / "finished"
    with wait_for_lock(folder.with_suffix(".lock")):
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            folder.mkdir()
            fill(folder)
            finished.touch()
    return folder


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Hold a lock that one process has at a time."""
    while True:
        try:
            descriptor = lock_directory(path)
            break
        except DemoError:
            time.sleep(0.05)
    try:
        yield
    finally:
        os.close(descriptor)
