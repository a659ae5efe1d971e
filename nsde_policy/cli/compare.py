"""`nsde-policy compare`: evaluate runs on the same seeds and compare them."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from nsde_policy.assets import resolve_run
from nsde_policy.cli import offline, options
from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class Compare:
    """Evaluate runs on the same seeds and compare them seed by seed.

    Reports scores with 95 % intervals, paired differences, network calls and latency; writes comparison.json,
    comparison.md and plots. Finished evaluations are cached: run the same command again to resume.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories; runs that differ only in the training seed are pooled."""
    demos: Path | None = None
    """Score the runs on recorded episodes of this store as well, or only so if they have no environment."""
    accept_omitted_chunks: options.AcceptOmittedChunksFlag = False
    episodes: options.EpisodesFlag = 50
    seed_start: options.SeedStartFlag = 100_000
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    workers: options.WorkersFlag = 0
    device: options.DeviceFlag = "auto"
    latency_rounds: options.LatencyRoundsFlag = 30
    out: Path = Path("out/compare")
    """Directory of the output."""
    reference: options.ReferenceFlag = None
    from_json: tuple[Path, ...] = ()
    """Files of earlier comparisons to include; without runs, nothing is evaluated."""
    json: options.JsonFileFlag = None

    def run(self) -> None:
        """Compare, write the results and print the table."""
        from nsde_policy.eval.compare.files import merge_comparisons, read_comparison
        from nsde_policy.eval.compare.plots import draw_comparison
        from nsde_policy.eval.compare.run import EntryCache, compare_runs
        from nsde_policy.eval.compare.table import format_comparison
        from nsde_policy.eval.evaluate import EvaluationConfig
        from nsde_policy.eval.render.plotting import pyplot
        from nsde_policy.files import check_writable, replace_file

        if not (self.runs or self.from_json):
            raise ConfigError("nothing to compare: give run directories, or --from-json FILE")
        env_kwargs = options.parse_env_kwargs(self.env_kwargs)
        runs = [resolve_run(path) for path in self.runs]
        pyplot()  # fail before the work starts, not after it
        check_writable(self.out / "comparison.json")
        options.check_json_file(self.json)
        recorded = offline.compare_recorded(self, runs)
        if recorded is not None:
            offline.write_comparison(recorded, self.out)
            if not offline.have_environment(runs, self.env):
                options.print_results(self.json, recorded.to_json(), recorded.as_text())
                return
        parts = [read_comparison(path) for path in self.from_json]
        if runs:
            config = EvaluationConfig(self.episodes, self.seed_start, self.env, env_kwargs)
            cache = EntryCache(self.out / "entries", config, self.workers, self.device)
            parts.append(compare_runs(runs, cache, rounds=self.latency_rounds))
        comparison = merge_comparisons(parts)
        text = format_comparison(comparison, reference=self.reference)
        replace_file(self.out / "comparison.json", comparison.to_json())
        replace_file(self.out / "comparison.md", f"{text}\n")
        draw_comparison(comparison, self.out, reference=self.reference)
        if recorded is not None:
            text += f"\n\n{recorded.as_text()}"
        options.print_results(self.json, comparison.to_json(), text)
        print(f"wrote {self.out}", file=sys.stderr)
