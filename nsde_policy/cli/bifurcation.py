"""`nsde-policy bifurcation`: the paper's 2-D experiment with all methods."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nsde_policy.bounds import Count, SeedNumber


@dataclass(frozen=True)
class BifurcationCommand:
    """Generate Y-shaped trajectories with a Neural SDE and with baselines; print a table, draw figures."""

    density: Literal["1", "10", "both"] = "both"
    """Points per trajectory, in hundreds."""
    out: Path = Path("out/bifurcation")
    """Directory for results.json, results.md, paths.npz and the figures."""
    seed: SeedNumber = 0
    """First seed of the runs."""
    seeds: Count = 3
    """Number of consecutive seeds."""
    paths: Count = 1000
    """Trajectories to generate per method, density and seed."""
    train_steps: Count = 3000
    """Optimiser steps per method."""
    workers: Count = 2
    """Worker processes. Results do not depend on it."""
    from_json: Path | None = None
    """Print the table of an earlier results.json and run nothing."""
    json: bool = False
    """Print results.json instead of the table."""

    def run(self) -> None:
        """Print the table, write results and figures."""
        from tqdm import tqdm

        from nsde_policy.eval.bifurcation.experiment import ExperimentSettings, list_jobs, run_experiment
        from nsde_policy.eval.bifurcation.figures import draw_experiment
        from nsde_policy.eval.bifurcation.results import ExperimentResults
        from nsde_policy.eval.render.plotting import pyplot
        from nsde_policy.files import check_writable

        if self.from_json is not None:
            print(ExperimentResults.read(self.from_json).to_markdown())
            return
        pyplot()  # fail before the work starts, not after it
        check_writable(self.out / "results.json")
        settings = ExperimentSettings(
            densities=(1, 10) if self.density == "both" else (int(self.density),),
            seeds=tuple(range(self.seed, self.seed + self.seeds)),
            paths=self.paths,
            train_steps=self.train_steps,
        )
        finished = run_experiment(settings, workers=self.workers)
        progress = tqdm(finished, "bifurcation", len(list_jobs(settings)), unit="model")
        results = ExperimentResults.collect(settings, progress)
        written = [*results.write(self.out), *draw_experiment(results, self.out)]
        print(results.to_json() if self.json else results.to_markdown())
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
