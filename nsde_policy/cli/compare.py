"""`nsde-policy compare`: roll out runs from the same seeds, compare them and show them on a page."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from nsde_policy.assets import resolve_run
from nsde_policy.errors import ConfigError

from .shared import options


@dataclass(frozen=True)
class Compare(options.RolloutCommand):
    """Evaluate runs on the same seeds and compare them seed by seed.

    Prints scores with 95 % intervals, paired differences and network calls. Writes comparison.json and
    report.html, a page that needs no network: the same tables, settings, versions, and a player for every
    episode of tasks with a drawn scene. Finished evaluations are cached: the same command again resumes.
    """

    runs: tyro.conf.Positional[tuple[options.RunPath, ...]] = ()
    """Run directories, or `shipped`; the first one is compared with the others. Runs that differ only in the
    training seed are pooled."""
    episodes: options.EpisodesFlag = 50
    seed_start: options.SeedStartFlag = 100_000
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    workers: options.WorkersFlag = 0
    device: options.DeviceFlag = "auto"
    ray: options.RayFlag = None
    out: Path = Path("out/compare")
    """Directory of the output."""

    def check(self) -> None:
        """Refuse an empty comparison, and a run without an environment, before torch is imported."""
        if not self.runs:
            raise ConfigError("nothing to compare: give run directories")
        for run in () if self.env is not None else self.runs:
            options.check_environment(run)

    def run(self) -> None:
        """Compare, print the tables, and write the results and their page."""
        from nsde_policy.eval.compare.run import EntryCache, compare_runs, load_records
        from nsde_policy.eval.compare.table import format_comparison
        from nsde_policy.eval.report.page import format_page
        from nsde_policy.eval.rollouts.runner import RolloutConfig
        from nsde_policy.files import check_writable, replace_file

        runs = [resolve_run(path) for path in self.runs]
        check_writable(self.out / "comparison.json")
        env_kwargs = options.parse_env_kwargs(self.env_kwargs)
        config = RolloutConfig(self.env, env_kwargs, self.episodes, self.seed_start)
        cache = EntryCache(self.out / "entries", config, self.workers, self.device, self.ray)
        comparison, records = compare_runs(runs, cache), load_records(runs, config)
        print(format_comparison(comparison))
        replace_file(self.out / "comparison.json", comparison.to_json())
        page = self.out / "report.html"
        replace_file(page, format_page(comparison, records))
        print(f"wrote {page}, {page.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
