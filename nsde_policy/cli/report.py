"""`nsde-policy report`: write one HTML page about runs."""

import sys
from dataclasses import dataclass
from pathlib import Path

from nsde_policy.cli.shared.comparison import ComparisonFlags
from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class ReportCommand(ComparisonFlags):
    """Write one self-contained HTML page about runs, which needs no network.

    It holds scores with 95 % intervals, paired differences, a player for every episode of tasks with a drawn
    scene, settings and versions. Finished episodes are cached: run the same command again to resume. With
    --demos, for your own robot: a verdict, and recorded episodes with the plans of a run over them.
    """

    demos: Path | None = None
    """Recorded episodes to score one run on, instead of an environment."""
    out: Path = Path("report.html")
    """Path of the output file."""
    title: str | None = None
    """Title of the page; default: task, number of policies and number of seeds."""
    cache: Path = Path("out/report")
    """Cache directory of finished episodes."""

    def run(self) -> None:
        """Run the episodes and write the page."""
        if self.demos is not None:
            self._write_recorded(self.demos)
            return
        from nsde_policy.eval.compare.result import read_comparison
        from nsde_policy.eval.report.collect import collect_report
        from nsde_policy.eval.report.page import format_page
        from nsde_policy.files import check_writable, replace_file

        chosen = self.list_runs()
        check_writable(self.out)
        comparison, runs = collect_report(
            chosen,
            self.make_cache(self.cache),
            earlier=[read_comparison(path) for path in self.from_json],
            rounds=self.latency_rounds,
        )
        replace_file(self.out, format_page(comparison, runs, title=self.title, reference=self.reference))
        print(f"wrote {self.out}, {self.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)

    def _write_recorded(self, demos: Path) -> None:
        """Score a run on recorded episodes, and write the page of these episodes."""
        from nsde_policy.eval.offline.frames import select_episodes
        from nsde_policy.eval.offline.verdict import describe_episodes
        from nsde_policy.files import check_writable, replace_file
        from nsde_policy.inference.policy import Policy
        from nsde_policy.viewer.episodes import EpisodePage

        check_writable(self.out)
        run, *others = self.list_runs()
        if others:
            raise ConfigError("--demos reports one run; `nsde-policy score` compares several")
        policy = Policy.from_pretrained(run).to(self.device)
        score = policy.evaluate(demos)
        verdict, notes = repr(score).splitlines(), describe_episodes(score)
        page = EpisodePage.from_policy(policy, select_episodes(policy, demos), verdict, notes)
        replace_file(self.out, page.to_html(self.title or str(run)))
        print(f"wrote {self.out}, {self.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
