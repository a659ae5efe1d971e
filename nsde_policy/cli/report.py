"""`nsde-policy report`: everything about some runs in one page."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class ReportCommand:
    """Write one self-contained page about runs, which opens anywhere without a network: scores with 95 %
    intervals, differences start by start, every episode to play back, videos, training curves, settings and
    versions. What has been played is kept: run the same command again to continue."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories, or the word shipped; runs that differ in their training seed alone are pooled."""
    out: Path = Path("report.html")
    """File to write."""
    title: str | None = None
    """Headline of the page; the task and the number of policies and starts by default."""
    episodes: int = 50
    """Episodes per run, on consecutive seeds."""
    seed_start: int = 100_000
    """First seed; published scores start at 100000, settings are tuned on 200000 and up."""
    reset_rule: Literal["benchmark", "gym_pusht"] = "benchmark"
    """Which states the seeds mean: the published benchmark's, or gym-pusht's."""
    from_json: tuple[Path, ...] = ()
    """Files that `compare` wrote, of the same starts: what they hold beyond the runs is shown as well,
    as outcomes without episodes to play back."""
    reference: str | None = None
    """Row that the others are compared with; neural_sde by default."""
    videos: int = 1
    """How many failures and how many successes of each run become videos; all can be played back anyway."""
    workers: int = 0
    """Processes that play; 0 for one per core. The result does not depend on it."""
    device: str = "cpu"
    """Where plans are computed; on cuda episodes are played side by side in one process."""
    latency_rounds: int = 30
    """How often each method is timed, on one CPU thread, all in turns; 0 leaves latency out."""
    kept: Path = Path("out/report")
    """Folder that keeps what has been played."""

    def run(self) -> None:
        """Play, film, write the page."""
        from nsde_policy.assets import resolve_run
        from nsde_policy.eval.compare.result import read_comparison
        from nsde_policy.eval.compare.run import Games
        from nsde_policy.eval.render.video import video_writers
        from nsde_policy.eval.report.collect import gather
        from nsde_policy.eval.report.page import page
        from nsde_policy.files import check_writable, replace_file
        from nsde_policy.training.progress import pick_device

        if not self.runs and not self.from_json:
            raise ConfigError("nothing to report on: give run directories, or --from-json FILE")
        if self.videos < 0:
            raise ConfigError(f"videos must be at least 0, got {self.videos}")
        if self.runs and self.videos:
            video_writers()  # what is missing is said now, not after the work
        check_writable(self.out)
        earlier = [read_comparison(path) for path in self.from_json]
        report = gather(
            [resolve_run(path) for path in self.runs],
            Games(self.episodes, self.seed_start, self.reset_rule),
            kept=self.kept,
            earlier=earlier,
            workers=self.workers,
            device=pick_device(self.device),
            rounds=self.latency_rounds,
            videos=self.videos,
        )
        content = page(report, title=self.title, reference=self.reference).encode()
        replace_file(self.out, content)
        print(f"wrote {self.out}, {len(content) / 1e6:.1f} MB", file=sys.stderr)
