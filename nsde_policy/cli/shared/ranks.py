"""The number of this process among those that torchrun started; all but rank 0 are silent."""

import os


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_rank() -> int:
    """Return the number of this process on all machines; 0 without torchrun."""
    return int(os.environ["RANK"]) if is_launched() else 0
