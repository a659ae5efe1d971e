"""`nsde-policy bifurcation`: the paper's 2-D experiment with all methods."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class BifurcationCommand:
    """Generate Y-shaped trajectories with a Neural SDE and with baselines; print a table, draw figures."""

    density: Literal["1", "10", "both"] = "both"
    """Points per trajectory, in hundreds."""
    out: Path = Path("out/bifurcation")
    """Directory for results.json, results.md, paths.npz and the figures."""
    seed: int = 0
    """First seed."""
    seeds: int = 3
    """Number of consecutive seeds."""
    paths: int = 1000
    """Trajectories to generate per method, density and seed."""
    train_steps: int = 3000
    """Optimiser steps per method."""
    workers: int = 2
    """Worker processes. Results do not depend on it."""
    json: bool = False
    """Print results.json instead of the table."""

    def run(self) -> None:
        """Print the table, write results and figures."""
        from tqdm import tqdm

        from nsde_policy.eval.bifurcation.experiment import Settings, jobs, run_all
        from nsde_policy.eval.bifurcation.figures import draw_all
        from nsde_policy.eval.bifurcation.report import Report
        from nsde_policy.eval.render.plotting import pyplot
        from nsde_policy.files import check_writable

        if self.seeds < 1 or self.workers < 1:
            raise ConfigError(f"need --seeds and --workers >= 1, got {self.seeds} and {self.workers}")
        pyplot()  # fail before the work starts, not after it
        check_writable(self.out / "results.json")
        settings = Settings(
            densities=(1, 10) if self.density == "both" else (int(self.density),),
            seeds=tuple(range(self.seed, self.seed + self.seeds)),
            paths=self.paths,
            train_steps=self.train_steps,
        )
        results = run_all(settings, workers=self.workers)
        report = Report.collect(settings, tqdm(results, "bifurcation", len(jobs(settings)), unit="model"))
        written = [*report.write(self.out), *draw_all(report, self.out)]
        print(report.as_json() if self.json else report.as_markdown())
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
