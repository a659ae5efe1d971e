"""Episodes of the shipped policy on two processes, and on a local Ray cluster of two nodes."""

import json
import os
import subprocess
import sys
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import RolloutConfig
from timing.common import ROOT, Options

EPISODES, WARM_UP, STEPS, TURNS = 200, 100, 40, 3
"""Short episodes: longer ones take more time for each message. Not timed are the first ones, in which one
process may play while the other starts."""


def measure_fleet(options: Options) -> list[dict[str, Any]]:
    """Play by turns on two processes and on two nodes; the time of starting them is left out."""
    episodes, turns = (4, 1) if options.smoke else (EPISODES, TURNS)
    rows = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks"), "RAY_USAGE_STATS_ENABLED": "0"}
    for _ in range(turns):
        taken = []
        for where in ("processes", "ray"):
            done = subprocess.run(
                [sys.executable, str(Path(__file__)), where, str(episodes)],
                check=True,
                env=environment,
                stdout=subprocess.PIPE,
                start_new_session=True,  # whose processes are counted
            )
            taken.append(json.loads(done.stdout.splitlines()[-1]))
        ratios = {f"{name}_ratio": taken[1][name] / taken[0][name] for name in ("wall_s", "cpu_s")}
        rows.append({f"{name}_pool": value for name, value in taken[0].items()} | taken[1] | ratios)
    return rows


def _count_cpu_s() -> float:
    """Return the processor time of all processes of this session."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks += int(values[11]) + int(values[12]) if int(values[3]) == os.getsid(0) else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def work(address: str | None, episodes: int) -> None:
    """Play, and print the time of the episodes after the first ones."""
    config = RolloutConfig(env_kwargs={"max_episode_steps": STEPS})
    seeds = range(200_000, 200_000 + WARM_UP + episodes)
    found = RolloutPool(None, config, workers=2, ray=address).run(seeds)
    deque(islice(found, WARM_UP), maxlen=0)
    began, used = time.perf_counter(), _count_cpu_s()
    deque(islice(found, episodes), maxlen=0)
    print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": _count_cpu_s() - used}))
    found.close()


if __name__ == "__main__":
    if sys.argv[1] == "ray":
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True)
        cluster.add_node()
        work(cluster.address, int(sys.argv[2]))
        ray.shutdown()
        cluster.shutdown()
    else:
        work(None, int(sys.argv[2]))
