"""`nsde-policy tune`: search the best settings for demonstrations."""

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nsde_policy.bounds import Count
from nsde_policy.cli.shared import options
from nsde_policy.cli.shared.options import list_flags
from nsde_policy.cli.shared.slurm import submit_command
from nsde_policy.cli.train import Train
from nsde_policy.errors import CheckpointError, import_optional
from nsde_policy.tasks import get_task
from nsde_policy.training.presets import PRESET_FILE

if TYPE_CHECKING:
    from nsde_policy.eval.tune.trial import TuneSetup

HELD_OUT = 0.2
"""Fraction of the episodes that scores settings if there is no environment."""


@dataclass(frozen=True)
class Tune(Train):
    """Search for the best settings for your demonstrations.

    The search starts from the settings that `train` would use with the same flags. Chunk and sampling, which
    need no training, come first, then blur, history, width and steps. The score is success × entropy of
    tasks with modes, success or the return, on seeds 200000+; without an environment minus the error on
    held-out episodes. Writes OUT/preset.json and OUT/best, a run with it.
    """

    examples: ClassVar[str] = """Examples:
  nsde-policy tune --demos pendulum.zarr --env Pendulum-v1 --dry-run    # prints the budget
  nsde-policy tune --demos my_robot --trials 12 --out out/arm           # --resume continues
  nsde-policy tune --demos my_robot --steps 2000 --workers 2            # shorter trainings
  nsde-policy train --demos my_robot --preset out/arm/preset.json"""
    uses_ranks: ClassVar[bool] = False
    out: Path = Path("out/tune")
    """Folder of trials, preset and final run."""
    trials: Count = 24
    """Settings of training to try, each with up to three seeds."""
    episodes: Count = 40
    """Episodes that score a candidate each time."""
    workers: options.WorkersFlag = 0
    ray: options.RayFlag = None
    dry_run: bool = False
    """Print the budget, or with --slurm the script, and do nothing else."""
    json: options.JsonFileFlag = None

    def check(self) -> None:
        """Refuse missing packages and demonstrations before torch is imported."""
        import_optional("optuna", "tune")
        super().check()

    def run(self) -> None:
        """Search, and print the best settings with their score; with --slurm, submit a job."""
        if self.slurm is not None:
            submit_command("tune", self)
            return
        from nsde_policy.eval.pool import GPU_SHARE
        from nsde_policy.eval.ray_pool import open_pool
        from nsde_policy.eval.tune.search import Search, format_values, rank_score
        from nsde_policy.files import lock_directory
        from nsde_policy.inference.torch_threads import count_cores

        out, setup = self.out.resolve(), self._make_setup()  # tasks of Ray have another working directory
        search = Search(setup, out, trials=self.trials, episodes=self.episodes, seed=self.seed)
        trainings, episodes = search.count()
        cost = f"budget: {trainings} trainings of about {setup.config.train.steps} steps, {episodes} episodes"
        print(cost, file=sys.stdout if self.dry_run else sys.stderr)
        if self.dry_run:
            return
        is_cpu = self.device == "cpu"
        workers = self.workers or (count_cores() if is_cpu else round(1 / GPU_SHARE))
        lock = lock_directory(out, error=CheckpointError)
        try:
            with open_pool(workers, ray=self.ray, gpus=0.0 if is_cpu else GPU_SHARE) as pool:
                values, best, default = search.run(pool, resume=self.resume)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; continue with the same command and --resume") from None
        finally:
            os.close(lock)
        results = {"settings": values, "best": best, "default": default}
        table = f"settings  {format_values(values)}\ngiven     {default}\ntuned     {best}"
        options.print_results(self.json, json.dumps(results, indent=2, default=vars), table)
        if rank_score(best) <= rank_score(default):
            print("the tuned settings are not better than the given ones on other seeds", file=sys.stderr)
        same = {name: getattr(self, name) for name in ("demos", "task", "env", "env_kwargs", "obs")}
        given = {name: value for name, value in same.items() if value != getattr(Tune, name)}
        train = shlex.join(["nsde-policy", "train", *list_flags({**given, "preset": out / PRESET_FILE})])
        print(f"wrote {out}; another run with these settings: {train}", file=sys.stderr)

    def _make_setup(self) -> "TuneSetup":
        """Return the settings to start from, and how candidates are trained and scored."""
        from nsde_policy.eval.tune.trial import TuneSetup
        from nsde_policy.training.train import TrainOptions

        task, env_kwargs, _, config = self.prepare()
        offline = get_task(task).env_id is None
        validation = self.validation or (HELD_OUT if offline else 0.0)
        training = TrainOptions(self.device, resume=True, validation=validation, scale_std=self.scale_std)
        demos = self.demos.resolve() if self.demos is not None and self.demos.exists() else self.demos
        return TuneSetup(config, training, demos, task, self.env, env_kwargs, offline)
