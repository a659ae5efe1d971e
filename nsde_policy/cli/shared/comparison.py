"""Flags of `compare` and `report`, which evaluate several runs on the same seeds."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from nsde_policy.assets import resolve_run
from nsde_policy.bounds import Natural
from nsde_policy.cli.shared import options
from nsde_policy.errors import ConfigError

if TYPE_CHECKING:
    from nsde_policy.eval.compare.run import EntryCache


@dataclass(frozen=True)
class ComparisonFlags:
    """Runs to compare, and how they are evaluated."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories, or `shipped`; runs that differ only in the training seed are pooled."""
    episodes: options.EpisodesFlag = 50
    seed_start: options.SeedStartFlag = 100_000
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    from_json: tuple[Path, ...] = ()
    """Files of earlier comparisons on the same seeds to include; without runs, nothing is evaluated."""
    reference: str | None = None
    """Row to compare the others with; default neural_sde."""
    latency_rounds: Natural = 30
    """Timed plans per method, on one CPU thread; 0 for none."""
    workers: options.WorkersFlag = 0
    device: options.DeviceFlag = "cpu"

    def list_runs(self) -> list[Path]:
        """Return the run directories; raise `ConfigError` if there is nothing to compare."""
        if not (self.runs or self.from_json):
            raise ConfigError("nothing to compare: give run directories, or --from-json FILE")
        return [resolve_run(path) for path in self.runs]

    def make_cache(self, folder: Path) -> "EntryCache":
        """Return what rolls out the runs, or reads their entries from a folder."""
        from nsde_policy.eval.compare.run import EntryCache
        from nsde_policy.eval.evaluate import EvaluationConfig

        env_kwargs = options.parse_env_kwargs(self.env_kwargs)
        config = EvaluationConfig(self.episodes, self.seed_start, self.env, env_kwargs)
        return EntryCache(folder, config, self.workers, self.device)
