"""What timing cases share: options, turns, fresh processes and tables."""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
MB = 1e6


Options = argparse.Namespace
"""Flags of benchmarks/speed.py."""


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a Markdown table, a new one whenever the columns change."""
    columns: list[str] = []
    for row in rows:
        if [*row] != columns:
            columns = [*row]
            print(f"\n| {' | '.join(columns)} |\n|" + " --- |" * len(columns))
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()]
        print(f"| {' | '.join(cells)} |", flush=True)


def time_in_turns(jobs: Mapping[str, Callable[[], object]], turns: Mapping[str, int]) -> list[dict[str, Any]]:
    """Call each job twice per turn, evenly spread; return milliseconds of first and second calls.

    In the first call the caches hold the weights of the others, as after a long control period.
    """
    taken: dict[str, list[list[float]]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    rounds = max(turns.values())
    for now in range(rounds):
        for name, job in jobs.items():
            if (now + 1) * turns[name] // rounds > now * turns[name] // rounds:
                moments = [time.perf_counter()]
                for _ in range(2):
                    job()
                    moments.append(time.perf_counter())
                taken[name].append([1e3 * (after - before) for before, after in pairwise(moments)])
    rows = []
    for name, times in taken.items():
        first, second = np.median(times, axis=0).tolist()
        p99 = float(np.percentile(np.array(times)[:, 1], 99))
        rows.append(
            {
                "what": name,
                "median_ms": second,
                "p99_ms": p99,
                "first_call_median_ms": first,
                "turns": len(times),
            }
        )
    return rows


def run_fresh(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a new process: peak memory never falls."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def peak_memory() -> float:
    """Return the largest resident size of this process so far, MB."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB
