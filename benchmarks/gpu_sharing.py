"""Let processes compute on one GPU at the same time, with CUDA's Multi-Process Service (MPS)."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from nsde_policy.errors import MissingDependencyError

CONTROL = "nvidia-cuda-mps-control"


@contextmanager
def share_gpu() -> Iterator[None]:
    """Run the MPS daemon in the meantime; processes that start inside share the GPU through it.

    A daemon that is running already is used and left running. One that is started here ends with the
    block, and with it all that other programs compute through it.
    """
    if shutil.which(CONTROL) is None:
        raise MissingDependencyError(f"{CONTROL} of the NVIDIA driver was not found; leave out --mps")
    if _ask("get_server_list"):
        yield
        return
    subprocess.run([CONTROL, "-d"], check=True)
    try:
        yield
    finally:
        _ask("quit -t 1")


def _ask(command: str) -> bool:
    """Send a command to the daemon; return whether one is running."""
    return not subprocess.run([CONTROL], input=f"{command}\n", text=True, capture_output=True).returncode
