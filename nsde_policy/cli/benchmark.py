"""`nsde-policy benchmark latency`: how long each method takes to plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import METHODS, get_method


@dataclass(frozen=True)
class Benchmark:
    """Time how long methods take from one observation to a chunk of actions: all in one process, in turns,
    one thread; median and 99th percentile."""

    what: tyro.conf.Positional[Literal["latency"]]
    """latency: time of a whole plan, and of its first action alone."""
    methods: tuple[str, ...] = ()
    """Methods to time at their default sizes, with fresh weights; all of them where no --runs are given."""
    runs: tuple[Path, ...] = ()
    """Run directories to time."""
    rounds: int = 30
    """How often each method plans, after a warm-up."""
    chunk: int = 8
    """Actions to plan; a method that plans fewer at a time plans as often as it takes."""
    budget: float = 20.0
    """Seconds each method may take; slow ones take part in fewer rounds, at least 3; the table says so."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where plans are computed."""
    json: Path | None = None
    """Write a list of {method, median_ms, p99_ms, calls_per_chunk …} to a file ('-' for standard output)."""

    def run(self) -> None:
        """Time, print the table, write the list."""
        from nsde_policy.eval.latency import (
            as_json,
            as_markdown,
            fresh_contenders,
            run_contenders,
            time_in_turns,
        )
        from nsde_policy.files import check_writable, replace_file
        from nsde_policy.training.progress import pick_device

        methods = self.methods or (() if self.runs else tuple(METHODS.names()))
        for name in methods:
            get_method(name)
        if len(set(methods)) < len(methods) or len(set(self.runs)) < len(self.runs):
            raise ConfigError("a method or a run is named twice; name each once")
        if self.json not in (None, Path("-")):
            check_writable(self.json)
        device = pick_device(self.device)
        contenders = [*fresh_contenders(methods, device=device), *run_contenders(self.runs, device=device)]
        timings = time_in_turns(contenders, rounds=self.rounds, actions=self.chunk, budget_s=self.budget)
        if self.json not in (None, Path("-")):
            replace_file(self.json, as_json(timings).encode())
        print(as_json(timings) if self.json == Path("-") else as_markdown(timings, device=device))
