"""`nsde-policy report`: write one HTML page about runs."""

import sys
from dataclasses import dataclass
from pathlib import Path

from nsde_policy.bounds import Natural
from nsde_policy.cli.shared.comparison import ComparisonFlags
from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class ReportCommand(ComparisonFlags):
    """Write one self-contained HTML page about runs, which needs no network.

    It holds scores with 95 % intervals, paired differences, a player for every episode of tasks with a drawn
    scene, videos, training curves, settings and versions. Finished episodes are cached: run the same command
    again to resume.
    """

    out: Path = Path("report.html")
    """Path of the output file."""
    title: str | None = None
    """Title of the page; default: task, number of policies and number of seeds."""
    videos: Natural = 1
    """Number of failures and number of successes per run to write as videos; without known successes, of
    the highest and of the lowest scores."""
    cache: Path = Path("out/report")
    """Cache directory of finished episodes."""

    def run(self) -> None:
        """Run the episodes and write the page."""
        from nsde_policy.assets import resolve_run
        from nsde_policy.eval.compare.files import read_comparison
        from nsde_policy.eval.compare.run import EntryCache
        from nsde_policy.eval.render.video import import_video_writer
        from nsde_policy.eval.report.collect import collect_report
        from nsde_policy.eval.report.page import format_page
        from nsde_policy.files import check_writable

        if not self.runs and not self.from_json:
            raise ConfigError("nothing to report on: give run directories, or --from-json FILE")
        config = self.make_evaluation()
        if self.runs and self.videos:
            import_video_writer()  # fail before the work starts, not after it
        check_writable(self.out)
        paths = [resolve_run(path) for path in self.runs]
        recorded = self.score_recorded(paths)
        if recorded is not None and not self.have_environment(paths):
            self._write(format_page(None, [], title=self.title, offline=recorded))
            return
        earlier = [read_comparison(path) for path in self.from_json]
        comparison, runs = collect_report(
            paths,
            EntryCache(self.cache, config, self.workers, self.device),
            earlier=earlier,
            rounds=self.latency_rounds,
            videos=self.videos,
        )
        page = format_page(comparison, runs, title=self.title, reference=self.reference, offline=recorded)
        self._write(page)

    def _write(self, page: str) -> None:
        from nsde_policy.files import replace_file

        replace_file(self.out, page)
        print(f"wrote {self.out}, {self.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
