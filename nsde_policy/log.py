"""Show the log of the package on standard error, without breaking progress bars."""

import logging
import sys
import threading
from contextlib import suppress

from nsde_policy.ranks import get_launched_rank

logger = logging.getLogger("nsde_policy")


class ProgressBarHandler(logging.Handler):
    """Log handler that prints to stderr without breaking progress bars.

    It gives progress bars a lock of this process alone. Their own one is shared with forked processes, and
    one of those that is killed while it prints would keep it for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record above the progress bar."""
        from tqdm import tqdm

        with suppress(OSError):  # a full disk behind standard error stops no work
            tqdm.write(self.format(record), file=sys.stderr)


def show_log() -> None:
    """Print the log of the package to stderr; of the processes of torchrun, only the first one's."""
    if not any(isinstance(handler, ProgressBarHandler) for handler in logger.handlers):
        logger.addHandler(ProgressBarHandler())
        logger.setLevel(logging.INFO if get_launched_rank() == 0 else logging.ERROR)
