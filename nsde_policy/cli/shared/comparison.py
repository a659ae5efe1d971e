"""Flags of `compare` and `report`, which evaluate several runs on the same seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from nsde_policy.bounds import Natural
from nsde_policy.cli.shared import options
from nsde_policy.errors import ComparisonError, ConfigError

if TYPE_CHECKING:
    from nsde_policy.eval.evaluate import EvaluationConfig
    from nsde_policy.eval.offline.comparison import OfflineComparison


@dataclass(frozen=True)
class ComparisonFlags:
    """Runs to compare, and how they are evaluated."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories, or `shipped`; runs that differ only in the training seed are pooled."""
    episodes: options.EpisodesFlag = 50
    seed_start: options.SeedStartFlag = 100_000
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    demos: Path | None = None
    """Score the runs on recorded episodes of this store as well, or only so if they have no environment."""
    accept_omitted_chunks: options.AcceptOmittedChunksFlag = False
    from_json: tuple[Path, ...] = ()
    """Files of earlier comparisons on the same seeds to include; without runs, nothing is evaluated."""
    reference: str | None = None
    """Row to compare the others with; default neural_sde."""
    latency_rounds: Natural = 30
    """Timed plans per method, on one CPU thread; 0 for none."""
    workers: options.WorkersFlag = 0
    device: options.DeviceFlag = "cpu"

    def make_evaluation(self) -> "EvaluationConfig":
        """Return the seeds and the environment of the evaluation."""
        from nsde_policy.eval.evaluate import EvaluationConfig

        env_kwargs = options.parse_env_kwargs(self.env_kwargs)
        return EvaluationConfig(self.episodes, self.seed_start, self.env, env_kwargs)

    def score_recorded(self, runs: Sequence[Path]) -> "OfflineComparison | None":
        """Score runs on the store of --demos; None without the flag."""
        from nsde_policy.eval.offline.comparison import compare_offline
        from nsde_policy.eval.offline.score import OfflineConfig
        from nsde_policy.run_directory import RunDirectory

        if self.demos is None:
            if self.accept_omitted_chunks:
                raise ConfigError("--accept-omitted-chunks needs --demos STORE: add it, or leave this out")
            return None
        if not runs:
            raise ConfigError("--demos scores run directories on recorded episodes: name the runs")
        for path in runs:
            if (stopped := RunDirectory(path).describe_unfinished()) is not None:
                raise ComparisonError(stopped)
        return compare_offline(
            runs,
            self.demos,
            config=OfflineConfig(accept_omitted_chunks=self.accept_omitted_chunks),
            reference=self.reference,
            device=self.device,
        )

    def have_environment(self, runs: Sequence[Path]) -> bool:
        """Return whether any of the runs has an environment to roll out in."""
        from nsde_policy.run_directory import RunDirectory
        from nsde_policy.tasks import get_task_of_run

        records = (RunDirectory(path).read_record() for path in runs)
        return any(get_task_of_run(record, self.env).env_id is not None for record in records)
