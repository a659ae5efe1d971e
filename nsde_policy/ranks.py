"""The processes that torchrun started, by its environment variables; torch is not imported."""

import os


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_launched_rank() -> int:
    """Return the number of this process on all machines; 0 without torchrun."""
    return int(os.environ["RANK"]) if is_launched() else 0
