"""Training and export that are killed at random moments, or that run out of disk or memory.

After each attempt the files are read again: nothing finished may be lost, and the work must continue.
"""

import importlib
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from attacks._attempts import REFUSED, SURVIVED, Attack, Attempt
from attacks._samples import Arrays, export, load_graph, load_run, make_samples, train

Limit = Callable[[], None]
"""Limits the resources of the process that calls it."""
MODULES = (
    *("onnxruntime", "torch", "zarr", "nsde_policy.deploy.export", "nsde_policy.deploy.runtime"),
    *("nsde_policy.inference.policy", "nsde_policy.training.run"),
)
"""What commands import, so that attempts start at once."""
LONGEST_S, HANGING_S = 3.0, 60.0
"""Seconds after which a command is killed at the latest, and after which it counts as hanging."""


def prepare(folder: Path, stack: ExitStack) -> Attack:
    """Import everything, then kill or limit training and export by turns."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in MODULES:
        importlib.import_module(module)  # and not used: threads do not survive a fork
    if run_in_child(lambda: make_samples(folder)) or run_in_child(lambda: export(folder)):
        raise RuntimeError("no files to attack")

    def attack(rng: random.Random, number: int) -> Attempt:
        command = [*COMMANDS][number % len(COMMANDS)]
        how = rng.choice(("kill -9", "kill -9", "disk", "memory"))
        limit = {"disk": limit_file_size, "memory": limit_memory}[how](rng) if how != "kill -9" else None
        delay = rng.uniform(0, LONGEST_S) if limit is None else HANGING_S
        return Attempt(f"{command}, {how}", f"attempt {number}", lambda: run(command, folder, limit, delay))

    return attack


def train_more(folder: Path) -> None:
    """Train a small policy, or continue its training."""
    train(folder / "trained", steps=60, resume=True, save_every_s=0.0)


def load_trained(folder: Path) -> Arrays:
    """Load the weights, once they are written."""
    return load_run(folder / "trained") if (folder / "trained/model.safetensors").exists() else {}


COMMANDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Arrays]]] = {
    "train": (train_more, load_trained),
    "export": (export, lambda folder: load_graph(folder / "graph")),
}
"""What is killed, and how its files are read afterwards; the tests of recordings kill their writer."""


def run(command: str, folder: Path, limit: Limit | None, delay: float) -> str:
    """Run a command in a child that is killed after a delay, and check its files.

    A killed training is continued by the next attempt; one that has ended is begun again.
    """
    work, load = COMMANDS[command]
    code = run_in_child(lambda: work(folder), limit, delay)
    found = run_in_child(lambda: check(load(folder)))
    if found:
        return f"the files cannot be read, exit code {found}"
    if code is None:
        return SURVIVED if limit is None else f"did not end within {HANGING_S:g} s"
    shutil.rmtree(folder / "trained", ignore_errors=True)
    if code and (limit is None or code == 1):
        return f"exit code {code}"
    return REFUSED if code else SURVIVED  # libraries abort without memory


def check(found: Arrays) -> None:
    """Raise `AssertionError` unless all numbers are finite."""
    assert all(np.isfinite(values).all() for values in found.values())


def run_in_child(
    work: Callable[[], None], limit: Limit | None = None, delay: float = HANGING_S
) -> int | None:
    """Return the exit code of a child: 0 if it finishes, 2 for an error of the package, 1 for any other.

    A child that has not ended after `delay` seconds is killed, and None returned.
    """
    if child := os.fork():
        ends = time.monotonic() + delay
        while not (status := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > ends:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.02)
        return os.waitstatus_to_exitcode(status[1])
    from nsde_policy.errors import NsdePolicyError, is_out_of_memory

    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        if limit is not None:
            limit()
        work()
        code = 0
    except Exception as error:
        code = 2 if isinstance(error, NsdePolicyError) or is_out_of_memory(error) else 1
    finally:
        os._exit(code)


def limit_file_size(rng: random.Random) -> Limit:
    """Return a limit of the size of files, which has the effect of a full disk."""
    size = rng.randint(0, 20_000)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def limit_memory(rng: random.Random) -> Limit:
    """Return a limit of the address space, some megabytes above what the process has."""
    above = rng.randint(0, 64 << 20)

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + above
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return limit
