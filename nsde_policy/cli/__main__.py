"""Start of the program `nsde-policy`: Ctrl-C ends it quietly at any time, also while it imports and exits."""

import os
import signal
import sys


def start() -> int:
    """Import the commands, run one and return its exit code."""
    usual = signal.getsignal(signal.SIGINT)
    quiet = usual if usual == signal.SIG_IGN else lambda *_: os._exit(130)  # ignored in the background
    signal.signal(signal.SIGINT, quiet)
    from nsde_policy.cli.main import main

    signal.signal(signal.SIGINT, usual)
    try:
        return main()
    finally:
        signal.signal(signal.SIGINT, quiet)


if __name__ == "__main__":
    sys.exit(start())
