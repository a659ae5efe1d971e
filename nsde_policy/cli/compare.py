"""`nsde-policy compare` and `nsde-policy report`: compare runs on the same seeds and show them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from nsde_policy.assets import resolve_run
from nsde_policy.errors import ConfigError

from .shared import options

if TYPE_CHECKING:
    from nsde_policy.eval.compare.run import EntryCache


@dataclass(frozen=True)
class ComparisonFlags(options.RolloutCommand):
    """Runs to compare, and how they are evaluated."""

    runs: tyro.conf.Positional[tuple[options.RunPath, ...]] = ()
    """Run directories, or `shipped`; runs that differ only in the training seed are pooled."""
    episodes: options.EpisodesFlag = 50
    seed_start: options.SeedStartFlag = 100_000
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    reference: str | None = None
    """Row to compare the others with; default neural_sde."""
    workers: options.WorkersFlag = 0
    device: options.DeviceFlag = "cpu"
    ray: options.RayFlag = None

    def check(self) -> None:
        """Refuse runs without an environment before torch is imported."""
        for run in self.runs:
            options.check_environment(run, self.env)

    def list_runs(self) -> list[Path]:
        """Return the run directories; raise `ConfigError` if there is nothing to compare."""
        if not self.runs:
            raise ConfigError("nothing to compare: give run directories")
        return [resolve_run(path) for path in self.runs]

    def make_cache(self, folder: Path, *, with_frames: bool = False) -> "EntryCache":
        """Return what rolls out the runs, or reads their entries from a folder."""
        from nsde_policy.eval.compare.run import EntryCache
        from nsde_policy.eval.rollouts.runner import RolloutConfig

        env_kwargs = options.parse_env_kwargs(self.env_kwargs)
        config = RolloutConfig(self.env, env_kwargs, self.episodes, self.seed_start)
        return EntryCache(folder, config, self.workers, self.device, ray=self.ray, with_frames=with_frames)


@dataclass(frozen=True)
class Compare(ComparisonFlags):
    """Evaluate runs on the same seeds and compare them seed by seed.

    Reports scores with 95 % intervals, paired differences and network calls; writes comparison.json,
    comparison.md and, for tasks that draw paths, paths.png. Finished evaluations are cached: run the same
    command again to resume.
    """

    device: options.DeviceFlag = "auto"
    out: Path = Path("out/compare")
    """Directory of the output."""
    json: options.JsonFileFlag = None

    def run(self) -> None:
        """Compare, write the results and print the table."""
        from nsde_policy.eval.compare.plots import draw_paths
        from nsde_policy.eval.compare.run import compare_runs
        from nsde_policy.eval.compare.table import format_comparison
        from nsde_policy.files import check_writable, replace_file

        runs = self.list_runs()
        check_writable(self.out / "comparison.json")
        comparison = compare_runs(runs, self.make_cache(self.out / "entries"))
        text = format_comparison(comparison, reference=self.reference)
        replace_file(self.out / "comparison.json", comparison.to_json())
        replace_file(self.out / "comparison.md", f"{text}\n")
        options.print_results(self.json, comparison.to_json(), text)
        if (picture := draw_paths(comparison)) is not None:
            replace_file(self.out / "paths.png", picture)
        print(f"wrote {self.out}", file=sys.stderr)


@dataclass(frozen=True)
class ReportCommand(ComparisonFlags):
    """Write one self-contained HTML page about runs, which needs no network.

    It holds scores with 95 % intervals, paired differences, a player for every episode of tasks with a drawn
    scene, settings and versions. Finished episodes are cached: run the same command again to resume. With
    --demos, for your own robot: a verdict, and recorded episodes with the plans of a run over them.
    """

    demos: options.DemosPath | None = None
    """Recorded episodes to score one run on, instead of an environment."""
    out: Path = Path("report.html")
    """Path of the output file."""
    title: str | None = None
    """Title of the page; default: task, number of policies and number of seeds."""
    cache: Path = Path("out/report")
    """Cache directory of finished episodes."""

    def check(self) -> None:
        """Refuse runs without an environment, unless recorded episodes take its place."""
        if self.demos is None:
            super().check()

    def run(self) -> None:
        """Run the episodes and write the page."""
        if self.demos is not None:
            self._write_recorded(self.demos)
            return
        from nsde_policy.eval.compare.run import compare_runs, load_records
        from nsde_policy.eval.report.page import format_page
        from nsde_policy.files import check_writable, replace_file

        runs = self.list_runs()
        check_writable(self.out)
        cache = self.make_cache(self.cache, with_frames=True)
        comparison = compare_runs(runs, cache)
        records = load_records(runs, cache.config)
        replace_file(self.out, format_page(comparison, records, title=self.title, reference=self.reference))
        print(f"wrote {self.out}, {self.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)

    def _write_recorded(self, demos: Path) -> None:
        """Score a run on recorded episodes, and write the page of these episodes."""
        from nsde_policy.eval.score.episodes import select_episodes
        from nsde_policy.eval.score.result import describe_episodes
        from nsde_policy.eval.score.scorer import score
        from nsde_policy.files import check_writable, replace_file
        from nsde_policy.policy.policy import Policy
        from nsde_policy.viewer.episodes import EpisodePage

        check_writable(self.out)
        runs = self.list_runs()
        if len(runs) != 1:
            raise ConfigError("--demos needs one run directory; `nsde-policy score` compares several")
        (run,) = runs
        policy = Policy.from_pretrained(run).to(self.device)
        result = score(policy, demos)
        verdict, notes = repr(result).splitlines(), describe_episodes(result)
        page = EpisodePage.from_policy(policy, select_episodes(policy, demos), verdict, notes)
        replace_file(self.out, page.to_html(self.title or str(run)))
        print(f"wrote {self.out}, {self.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
