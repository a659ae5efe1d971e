"""Start of the program `nsde-policy`: Ctrl-C ends it quietly, also while it imports."""

import sys


def start() -> int:
    """Import the commands, run one and return its exit code."""
    try:
        from nsde_policy.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(start())
