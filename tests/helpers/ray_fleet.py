"""Evaluate on a Ray cluster of two nodes and kill one: `python -m tests.helpers.ray_fleet OUT EVAL_FLAGS…`.

The exit code is 75 if the cluster did not start: Ray has limits of 30 s, which busy machines exceed.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nsde_policy.eval.rollouts.scores
from nsde_policy.cli.main import main
from nsde_policy.eval.rollouts.executors import open_pool

NOT_STARTED = os.EX_TEMPFAIL
KILL_AFTER = 60
"""Episodes whose results have come before a node is killed."""
FIND_S = 30.0
"""Seconds to look for a task that the node runs."""
STORE_BYTES = 80 * 2**20


def find_session(session: int) -> dict[int, str]:
    """Return the processes of a session, and their command lines, from /proc."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, parent, _, owner = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(owner) == session and status != "Z":
                found[int(folder.name)] = f"{parent} {(folder / 'cmdline').read_text()}"
        except OSError:  # it has ended
            continue
    return found


def measure_memory() -> int:
    """Return the memory of this session's processes, bytes; shared pages are counted once."""
    total = 0
    for process in find_session(os.getsid(0)):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def run(out: Path, flags: list[str]) -> None:
    """Evaluate on two nodes; write the largest memory, and when a node was killed, to `out`."""
    import ray
    from ray.cluster_utils import Cluster

    facts: dict[str, Any] = {"peak_bytes": 0}

    def watch() -> None:
        while True:
            facts["peak_bytes"] = max(facts["peak_bytes"], measure_memory())
            time.sleep(1)

    with tempfile.TemporaryDirectory(prefix="ray") as temporary:
        settings = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        cluster = Cluster()
        Path("/tmp/ray").mkdir(exist_ok=True)  # Ray writes the address there, but does not make the folder
        try:
            cluster.add_node(**settings, temp_dir=temporary, num_gpus=1)
            doomed = cluster.add_node(**settings)
            cluster.wait_for_nodes(120)
        except Exception as error:
            print(error, file=sys.stderr)
            sys.exit(NOT_STARTED)
        threading.Thread(target=watch, daemon=True).start()
        raylet = doomed.all_processes["raylet"][0].process.pid

        def kill_node() -> None:
            """Kill the node with the task that it runs; slow machines may run none there."""
            found: list[int] = []
            ends = time.monotonic() + FIND_S
            while not found and time.monotonic() < ends:
                processes = find_session(os.getsid(0)).items()
                found = [
                    each for each, command in processes if command.startswith(f"{raylet} ray::_run_task")
                ]
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)  # its task cannot end: another node has to
            cluster.remove_node(doomed, allow_graceful=False)
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

        def show_progress(episodes: Iterable[Any], *args: object, **settings: object) -> Iterator[Any]:
            """Take the place of the progress bar: kill the node while it plays."""
            for count, episode in enumerate(episodes):
                if count == KILL_AFTER:
                    kill_node()
                    facts["killed"] = count
                yield episode

        nsde_policy.eval.rollouts.scores.tqdm = show_progress
        facts["code"] = main(["eval", *flags, "--ray", cluster.address])
        with open_pool(1, ray=cluster.address, gpus=0.25) as pool:
            facts["gpus"] = pool.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result()
            facts["errors"] = [repr(pool.submit(int, "x").exception())]
            facts["errors"] += [type(pool.submit(os._exit, 1).exception()).__name__]
        ray.shutdown()
        cluster.shutdown()
    out.write_text(json.dumps(facts))


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
