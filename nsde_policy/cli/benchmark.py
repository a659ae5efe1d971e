"""`nsde-policy benchmark latency`: planning time of each method."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from nsde_policy.assets import resolve_run
from nsde_policy.bounds import Count, Positive
from nsde_policy.cli import options
from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import METHODS, get_method


@dataclass(frozen=True)
class Benchmark:
    """Measure the time from an observation to a chunk of actions: median and 99th percentile.

    All methods take turns in one process with one thread.
    """

    what: tyro.conf.Positional[Literal["latency"]]
    """latency: time of a whole plan, and of its first action."""
    methods: tuple[str, ...] = ()
    """Methods to time with untrained weights of the default size; all methods if there are no --runs."""
    runs: tuple[Path, ...] = ()
    """Run directories to time."""
    rounds: Count = 30
    """Timed plans per method, after a warm-up."""
    chunk: Count = 8
    """Actions per plan; a method with shorter plans plans repeatedly."""
    budget: Positive = 20.0
    """Seconds per method; slow methods run fewer rounds, at least 3."""
    device: options.DeviceFlag = "cpu"
    json: options.JsonFileFlag = None

    def run(self) -> None:
        """Measure and print the table."""
        from nsde_policy.eval import latency

        methods = self.methods or (() if self.runs else tuple(METHODS.list_usable()))
        for name in methods:
            get_method(name)
        if len(set(methods)) < len(methods) or len(set(self.runs)) < len(self.runs):
            raise ConfigError("a method or a run is named twice; name each once")
        options.check_json_file(self.json)
        contenders = [
            *latency.build_fresh_contenders(methods, device=self.device),
            *latency.load_contenders([resolve_run(run) for run in self.runs], device=self.device),
        ]
        rows = latency.measure_latency(
            contenders, rounds=self.rounds, actions=self.chunk, budget_s=self.budget
        )
        options.print_results(self.json, latency.encode_latencies(rows), latency.format_latencies(rows))
