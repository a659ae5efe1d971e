"""Processes that are killed at random moments, or that run out of disk or memory.

After each attempt the files are read again: nothing finished may be lost, and the work must continue.
"""

import importlib
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attacks._worker import run_guarded
from attacks.files import export, load_graph, load_run, make_files, train
from attacks.result import REFUSED, SURVIVED, Result, number_attempts

MODULES = (
    *("onnxruntime", "torch", "zarr", "nsde_policy.deploy.export", "nsde_policy.deploy.runtime"),
    *("nsde_policy.eval.report.collect", "nsde_policy.training.run"),
)
"""What commands import, so that attempts start at once."""
LONGEST_S = 3.0
"""Seconds after which a command is killed at the latest."""
HANGING_S, HUNG = 120.0, 99
"""Seconds after which a command counts as hanging, and its exit code."""


def run(seconds: float, seed: int) -> Result:
    """Kill commands at random moments, then run them with too little disk and memory."""
    result, rng = Result(), random.Random(seed)
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in MODULES:
        importlib.import_module(module)  # and not used: threads do not survive a fork
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if wait_for(fork(make_files, folder)) or wait_for(fork(export, folder)):
            raise RuntimeError("no files to attack")
        for command, (work, check) in COMMANDS.items():
            reset(folder)
            for number in number_attempts(seconds / 4):
                answer = kill(folder, work, check, rng)
                result.count(f"processes: kill -9 of {command}", answer, f"kill {number}")
            code = wait_for(fork(work, folder))
            answer = SURVIVED if code == 0 else f"exit code {code} after the kills"
            result.count(f"processes: kill -9 of {command}", answer, "continued")
            for number in number_attempts(seconds / 4):
                name, limit = ("memory", limit_memory(rng)) if number % 2 else ("disk", limit_file_size(rng))
                answer = run_limited(folder, work, check, limit)
                result.count(f"processes: {command} without {name}", answer, f"attempt {number}")
    return result


def train_more(folder: Path) -> None:
    """Train a small policy, or continue its training."""
    train(folder / "trained", steps=60, resume=True, save_every_s=0.0)


def check_trained(folder: Path) -> str:
    """Return whether the weights, once written, load and are finite."""
    return (
        check_actions(load_run(folder / "trained"))
        if (folder / "trained/model.safetensors").exists()
        else SURVIVED
    )


def check_actions(found: dict[str, np.ndarray]) -> str:
    """Return whether planned actions are finite."""
    return SURVIVED if np.isfinite(found["actions"]).all() else "actions that are not finite"


COMMANDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], str]]] = {
    "train": (train_more, check_trained),
    "export": (export, lambda folder: check_actions(load_graph(folder / "graph"))),
}
"""What is killed, and how its files are checked afterwards; the tests of recordings kill their writer."""


def fork(work: Callable[[Path], None], folder: Path, limit: Callable[[], None] = lambda: None) -> int:
    """Run `work` in a child: exit code 0 if it finishes, 2 for an error of the package, 1 for any other."""
    from nsde_policy.errors import NsdePolicyError, is_out_of_memory

    if child := os.fork():
        return child
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        limit()
        work(folder)
        code = 0
    except Exception as error:
        code = 2 if isinstance(error, NsdePolicyError) or is_out_of_memory(error) else 1
    finally:
        os._exit(code)


def wait_for(child: int) -> int:
    """Return the exit code of a child, which is killed if it hangs."""
    for _ in number_attempts(HANGING_S):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return HUNG


def kill(folder: Path, work: Callable[[Path], None], check: Callable[[Path], str], rng: random.Random) -> str:
    """Kill a command at a random moment and check its files."""
    child = fork(work, folder)
    time.sleep(rng.uniform(0, LONGEST_S))
    os.kill(child, signal.SIGKILL)  # one that has ended waits to be collected
    finished = wait_for(child) == 0
    answer = check_in_child(check, folder)
    if finished:
        reset(folder)
    return answer


def run_limited(
    folder: Path, work: Callable[[Path], None], check: Callable[[Path], str], limit: Callable[[], None]
) -> str:
    """Run a command with a limit; it fails with a typed error or finishes, and its files are whole."""
    reset(folder)
    code = wait_for(fork(work, folder, limit))
    answer = check_in_child(check, folder)
    if answer == SURVIVED and code:
        return f"exit code {code}" if code in (1, HUNG) else REFUSED  # libraries abort without memory
    return answer


def check_in_child(check: Callable[[Path], str], folder: Path) -> str:
    """Return how a check in a process of its own ended."""

    def write(folder: Path) -> None:
        (folder / "answer").write_text(run_guarded(check, folder))

    code = wait_for(fork(write, folder))
    return f"check: exit code {code}" if code else (folder / "answer").read_text()


def reset(folder: Path) -> None:
    """Delete what commands have written, so that the next one starts again."""
    shutil.rmtree(folder / "trained", ignore_errors=True)


def limit_file_size(rng: random.Random) -> Callable[[], None]:
    """Return a limit of the size of files, which has the effect of a full disk."""
    size = rng.randint(0, 20_000)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def limit_memory(rng: random.Random) -> Callable[[], None]:
    """Return a limit of the address space, some megabytes above what the process has."""
    above = rng.randint(0, 64 << 20)

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + above
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return limit
