"""`nsde-policy report`: write one HTML page about runs."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from nsde_policy.bounds import Natural
from nsde_policy.cli import offline, options
from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class ReportCommand:
    """Write one self-contained HTML page about runs, which needs no network.

    It holds scores with 95 % intervals, paired differences, a player for every episode of tasks with a drawn
    scene, videos, training curves, settings and versions. Finished episodes are cached: run the same command
    again to resume.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories, or `shipped`; runs that differ only in the training seed are pooled."""
    out: Path = Path("report.html")
    """Path of the output file."""
    title: str | None = None
    """Title of the page; default: task, number of policies and number of seeds."""
    episodes: options.EpisodesFlag = 50
    seed_start: options.SeedStartFlag = 100_000
    demos: Path | None = None
    """Score the runs on recorded episodes of this store as well, or only so if they have no environment."""
    accept_omitted_chunks: options.AcceptOmittedChunksFlag = False
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    from_json: tuple[Path, ...] = ()
    """Files written by `compare` with the same seeds; their further runs are shown without playback."""
    reference: options.ReferenceFlag = None
    videos: Natural = 1
    """Number of failures and number of successes per run to write as videos; without known successes, of
    the highest and of the lowest scores."""
    workers: options.WorkersFlag = 0
    device: options.DeviceFlag = "cpu"
    latency_rounds: options.LatencyRoundsFlag = 30
    cache: Path = Path("out/report")
    """Cache directory of finished episodes."""

    def run(self) -> None:
        """Run the episodes and write the page."""
        from nsde_policy.assets import resolve_run
        from nsde_policy.eval.compare.files import read_comparison
        from nsde_policy.eval.compare.run import EntryCache
        from nsde_policy.eval.evaluate import EvaluationConfig
        from nsde_policy.eval.render.video import import_video_writer
        from nsde_policy.eval.report.collect import collect_report
        from nsde_policy.eval.report.page import format_page
        from nsde_policy.files import check_writable

        if not self.runs and not self.from_json:
            raise ConfigError("nothing to report on: give run directories, or --from-json FILE")
        env_kwargs = options.parse_env_kwargs(self.env_kwargs)
        if self.runs and self.videos:
            import_video_writer()  # fail before the work starts, not after it
        check_writable(self.out)
        paths = [resolve_run(path) for path in self.runs]
        recorded = offline.compare_recorded(self, paths)
        if recorded is not None and not offline.have_environment(paths, self.env):
            self._write(format_page(None, [], title=self.title, offline=recorded))
            return
        earlier = [read_comparison(path) for path in self.from_json]
        config = EvaluationConfig(self.episodes, self.seed_start, self.env, env_kwargs)
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
