"""The rank that torchrun gave this process; only rank 0 prints."""

import os


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_rank() -> int:
    """Return the number of this process on all machines; 0 without torchrun."""
    return int(os.environ["RANK"]) if is_launched() else 0
