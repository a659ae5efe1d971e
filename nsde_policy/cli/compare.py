"""`nsde-policy compare`: runs on the same starts, in tables and plots."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from nsde_policy.errors import ConfigError

if TYPE_CHECKING:
    from nsde_policy.eval.compare.result import Comparison
    from nsde_policy.eval.compare.run import Job


@dataclass(frozen=True)
class Compare:
    """Play runs on the same starts and compare them start by start: scores with 95 % intervals, paired
    differences, network calls, latency. Writes comparison.json, comparison.md and plots. What has been played
    is kept: run the same command again to continue."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories; runs that differ in their training seed alone are pooled."""
    suite: Literal["pusht"] | None = None
    """Train every method that is not trained yet, into OUT/runs, and compare them all. This takes
    long, and without a GPU very long: there, take --preset fast. Goes on where it was interrupted."""
    preset: Literal["default", "fast"] = "default"
    """With --suite: the full sizes, or those that a CPU can train."""
    train_seeds: int = 1
    """With --suite: trainings per method, from seed 0 on."""
    demos: Path | None = None
    """With --suite: demonstrations to train on; without it, those embedded in the package, which are
    episodes of its own Neural SDE and so favour it."""
    episodes: int = 50
    """Episodes per run, on consecutive seeds."""
    seed_start: int = 100_000
    """First seed; published scores start at 100000, settings are tuned on 200000 and up."""
    reset_rule: Literal["benchmark", "gym_pusht"] = "benchmark"
    """Which states the seeds mean: the published benchmark's, or gym-pusht's."""
    workers: int = 0
    """Processes that play; 0 for one per core. The result does not depend on it."""
    device: str = "auto"
    """cpu, or cuda, where episodes are played side by side; auto takes a GPU where there is one."""
    latency_rounds: int = 30
    """How often each method is timed, on one CPU thread, all in turns; 0 leaves latency out."""
    latency: Path | None = None
    """Take latencies from this file, which `nsde-policy benchmark latency --json` wrote."""
    out: Path = Path("out/compare")
    """Directory for everything that is written."""
    reference: str | None = None
    """Row that the others are compared with; neural_sde by default."""
    from_json: tuple[Path, ...] = ()
    """Files of earlier comparisons to show again, or together; without runs, nothing is played."""
    json: Path | None = None
    """Write comparison.json to this file too ('-' for standard output, instead of the table)."""

    def run(self) -> None:
        """Compare, write, print the table."""
        from nsde_policy.eval.compare.plots import draw_all
        from nsde_policy.eval.compare.result import merged, read_comparison
        from nsde_policy.eval.compare.run import read_latency, with_latency
        from nsde_policy.eval.compare.table import table
        from nsde_policy.eval.render.plotting import pyplot
        from nsde_policy.files import check_writable, replace_file

        if not (self.runs or self.suite or self.from_json):
            raise ConfigError("nothing to compare: give run directories, --suite pusht, or --from-json FILE")
        pyplot()  # a missing matplotlib, or what cannot be read or written, is said now, not after the work
        for target in (self.out / "comparison.json", self.json):
            if target not in (None, Path("-")):
                check_writable(target)
        earlier = [read_comparison(path) for path in self.from_json]
        rows = None if self.latency is None else read_latency(self.latency)
        together = [merged(earlier)] if earlier else []
        together += [self._played()] if self.runs or self.suite else []
        comparison = merged(together)
        if rows is not None:
            comparison = with_latency(comparison, rows)
        text = table(comparison, reference=self.reference)
        replace_file(self.out / "comparison.json", comparison.to_json().encode())
        replace_file(self.out / "comparison.md", f"{text}\n".encode())
        if self.json not in (None, Path("-")):
            replace_file(self.json, comparison.to_json().encode())
        draw_all(comparison, self.out, reference=self.reference)
        print(comparison.to_json() if self.json == Path("-") else text)
        print(f"wrote {self.out}", file=sys.stderr)

    def _played(self) -> "Comparison":
        from nsde_policy.eval.compare.run import Games, compare
        from nsde_policy.training.progress import pick_device

        device = pick_device(self.device)
        games = Games(self.episodes, self.seed_start, self.reset_rule)
        rounds = 0 if self.latency is not None else self.latency_rounds
        return compare(
            self._jobs(device),
            games,
            kept=self.out / "entries",
            workers=self.workers,
            device=device,
            rounds=rounds,
        )

    def _jobs(self, device: str) -> "list[Job]":
        """The runs that were named, and those of the suite, trained where they are not."""
        from nsde_policy.eval.compare.run import Job, checked_records
        from nsde_policy.eval.compare.suite import RESAMPLED, train_suite

        jobs = [Job(path) for path in self.runs]
        checked_records(jobs)
        if self.suite is None:
            return jobs
        if self.train_seeds < 1:
            raise ConfigError(f"need train_seeds >= 1, got {self.train_seeds}")
        trained = train_suite(
            self.suite,
            self.out / "runs",
            preset=self.preset,
            seeds=range(self.train_seeds),
            demos=self.demos,
            device=device,
        )
        for member, path in trained:
            jobs.append(Job(path))
            jobs += [Job(path, detail, changes) for detail, changes in RESAMPLED.get(member, {}).items()]
        return jobs
