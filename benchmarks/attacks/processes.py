"""Processes that are killed, or that run out of disk, memory or permission.

After each attempt the files are read again: nothing that was finished before may be lost, and the work must
continue. Mounts need root; without it these attempts are left out, with a note.
"""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from attacks._worker import REFUSED, SURVIVED, count, run_guarded
from attacks.files import make_files
from attacks.result import AttackResult

KILLS, LIMITS = 40, 8
"""Kills of each command, and attempts with each limit, at scale 1."""


def run(scale: float, seed: int) -> Iterator[AttackResult]:
    """Kill commands at random moments, then run them with too little of everything."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        for command, (work, check) in COMMANDS.items():
            yield _kill(command, folder, work, check, rng, max(1, round(KILLS * scale)))
        attempts = max(1, round(LIMITS * scale))
        yield _limit("disk full (file size)", folder, rng, attempts, _limit_file_size)
        yield _limit("out of memory", folder, rng, attempts, _limit_memory)
        yield from _mount("disk full (mount)", folder, ["-o", "size=200k"])
        yield from _mount("read-only directory", folder, ["-o", "size=200k,ro"])


def _train(folder: Path) -> None:
    """Train a small policy, or continue its training."""
    from nsde_policy.config import NetworkConfig, TrainConfig
    from nsde_policy.data import load_demonstrations
    from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
    from nsde_policy.run_config import RunConfig
    from nsde_policy.training.run import train_run

    config = RunConfig(
        model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
        train=TrainConfig(steps=400, batch_size=16, log_every=5),
    )
    demos = load_demonstrations(folder / "v2.zarr")
    path = folder / "trained"
    train_run(demos, config, path, task="none", seed=0, resume=True, save_every_s=0.0)


def _check_trained(folder: Path) -> str:
    """Return whether the weights, once written, load and are finite."""
    from nsde_policy.inference.policy import Policy

    if not (folder / "trained" / "model.safetensors").exists():
        return SURVIVED
    action = Policy.from_pretrained(folder / "trained").select_action(np.zeros(3))
    return SURVIVED if np.isfinite(action).all() else "the policy plans actions that are not finite"


def _collect(folder: Path) -> None:
    """Append episodes to a recording; each holds its number, and is noted once it is committed."""
    from nsde_policy.data.types import Episode
    from nsde_policy.data.zarr_store.writer import DemoWriter

    with DemoWriter(folder / "collected.zarr", rate_hz=10) as writer:
        for number in range(len(writer), len(writer) + 50):
            rows = np.full((7, 2), number, np.float32)
            writer.append(Episode(rows, rows))
            with (folder / "committed").open("w") as note:
                note.write(str(number + 1))


def _check_collected(folder: Path) -> str:
    """Return whether every committed episode is in the recording, unchanged and in order."""
    from nsde_policy.data import load_demonstrations

    text = (folder / "committed").read_text() if (folder / "committed").exists() else ""
    committed = int(text or 0)  # the note itself may be cut off
    if not committed:
        return SURVIVED
    demos = load_demonstrations(folder / "collected.zarr")
    found = [float(episode.obs[0, 0]) for episode in demos]
    if len(found) < committed or found != [float(number) for number in range(len(found))]:
        return f"{committed} episodes were committed, found {found}"
    return SURVIVED


def _export(folder: Path) -> None:
    """Export the policy again and again."""
    from nsde_policy.deploy.export import export_policy
    from nsde_policy.inference.policy import Policy

    export_policy(Policy.from_pretrained(folder / "run"), folder / "graph" / "policy.onnx", steps=2, cases=1)


def _check_exported(folder: Path) -> str:
    """Return whether the graph, old or new, loads and plans."""
    from nsde_policy.deploy.runtime import RuntimePolicy

    policy = RuntimePolicy.load(folder / "graph" / "policy.onnx")
    return SURVIVED if np.isfinite(policy.select_action(np.zeros(3))).all() else "not finite"


COMMANDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], str]]] = {
    "train": (_train, _check_trained),
    "collect": (_collect, _check_collected),
    "export": (_export, _check_exported),
}
"""What is killed, and how its files are checked afterwards."""


def _fork(work: Callable[[Path], None], folder: Path, limit: Callable[[], None] | None = None) -> int:
    """Run `work` in a child: exit code 0 if it finishes, 2 for an error of the package, 1 for any other."""
    from nsde_policy.errors import NsdePolicyError

    if child := os.fork():
        return child
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        if limit is not None:
            limit()
        work(folder)
        code = 0
    except (NsdePolicyError, MemoryError):
        code = 2
    except RuntimeError as error:
        code = 2 if "memory" in str(error) else 1  # torch has no class of errors for it
    finally:
        os._exit(code)


def _kill(
    command: str,
    folder: Path,
    work: Callable[[Path], None],
    check: Callable[[Path], str],
    rng: random.Random,
    kills: int,
) -> AttackResult:
    """Kill a command at random moments; its files are checked after each kill, and it finishes at last."""
    result = AttackResult(f"processes: kill -9 of {command}")
    started = time.monotonic()
    _reset(folder)
    work(folder)  # measures how long it takes, and imports everything
    longest = time.monotonic() - started
    _reset(folder)
    for number in range(kills):
        child = _fork(work, folder)
        time.sleep(rng.uniform(0, min(longest, 3.0)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        finished = os.waitpid(child, 0)[1] == 0
        count(result, run_guarded(check, folder), f"kill {number}")
        if finished:
            _reset(folder)
    child = _fork(work, folder)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count(result, SURVIVED if code == 0 else f"exit code {code} after the kills", "continued")
    return result


def _reset(folder: Path) -> None:
    """Delete what commands have written, so that the next one starts again."""
    for name in ("trained", "collected.zarr"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "committed").unlink(missing_ok=True)


def _limit(
    name: str,
    folder: Path,
    rng: random.Random,
    attempts: int,
    make: Callable[[random.Random], Callable[[], None]],
) -> AttackResult:
    """Run every command with a limit; it fails with a typed error or finishes, and its files are whole."""
    result = AttackResult(f"processes: {name}")
    for number in range(attempts):
        for command, (work, check) in COMMANDS.items():
            _reset(folder)
            code = os.waitstatus_to_exitcode(os.waitpid(_fork(work, folder, make(rng)), 0)[1])
            answer = run_guarded(check, folder)
            if answer == SURVIVED and code == 2:
                answer = REFUSED
            elif answer == SURVIVED and code == 1:
                answer = "an unexpected error"
            count(result, answer, f"{command}, attempt {number}")
    return result


def _limit_file_size(rng: random.Random) -> Callable[[], None]:
    """Return a limit of the size of files, which has the effect of a full disk."""
    size = rng.randint(0, 20_000)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def _limit_memory(rng: random.Random) -> Callable[[], None]:
    """Return a limit of the address space, some megabytes above what the process has."""
    above = rng.randint(0, 64 << 20)

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + above
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return limit


def _mount(name: str, folder: Path, options: list[str]) -> Iterator[AttackResult]:
    """Run commands into a small or read-only file system: each succeeds, or exits with 2 and one line."""
    target = folder / "mount"
    target.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", target], capture_output=True)
    if mounted.returncode:
        print(f"{name} left out: cannot mount ({mounted.stderr.decode().strip()})", file=sys.stderr)
        return
    result = AttackResult(f"processes: {name}")
    try:
        for args in (
            ["train", "--demos", folder / "v2.zarr", "--train.steps", "50", "--out", target / "run"],
            ["export", folder / "run", "--steps", "2", "--cases", "1", "--out", target / "policy.onnx"],
            ["export", "--steps", "2", "--cases", "1", "--out", target / "shipped.onnx"],
            ["eval", "--episodes", "1", "--json", target / "deep" / "scores.json"],
            ["collect", "--policy", "shipped", "--out", target / "demos.zarr", "--episodes", "2"],
        ):
            command = [sys.executable, "-m", "nsde_policy.cli.main", *map(str, args)]
            done = subprocess.run(command, capture_output=True, text=True)
            lines = [line for line in done.stderr.splitlines() if line.startswith("nsde-policy:")]
            answer = {0: SURVIVED, 2: REFUSED}.get(done.returncode, f"exit code {done.returncode}: {lines}")
            if answer == REFUSED and len(lines) != 1:
                answer = f"exit code 2 with {len(lines)} lines: {done.stderr[-200:]}"
            count(result, answer, str(args[0]))
    finally:
        subprocess.run(["umount", target], check=True)
    yield result
