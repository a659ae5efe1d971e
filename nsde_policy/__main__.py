"""Start of `python -m nsde_policy`, which `torchrun -m nsde_policy` runs: the program `nsde-policy`."""

import sys

from nsde_policy.cli.__main__ import start

if __name__ == "__main__":
    sys.exit(start())
