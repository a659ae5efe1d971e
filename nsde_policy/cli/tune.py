"""`nsde-policy tune`: search the best settings for demonstrations."""

import json
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nsde_policy.bounds import Count, Natural
from nsde_policy.errors import import_optional
from nsde_policy.tasks import check_recorded_task, get_task
from nsde_policy.training.presets import PRESET_FILE

from .shared.options import JsonFileFlag, print_results
from .train import TrainingCommand

if TYPE_CHECKING:
    from nsde_policy.eval.tune.search import Search

HELD_OUT = 0.2
"""Fraction of the episodes that scores settings if there is no environment."""
MOST_WORKERS = 8
"""Most processes by default: trials that run at the same time do not learn from each other."""


@dataclass(frozen=True)
class Tune(TrainingCommand):
    """Search for the best settings for your demonstrations.

    The search starts from the settings that `train` would use with the same flags, and changes sampling,
    chunk, blur, history, width and steps. The score is success × entropy of tasks with modes, success or the
    return, on seeds 200000+; without an environment minus the error on held-out episodes. Writes
    OUT/preset.json and runs with it. The same command continues a search, or joins it from another machine.
    """

    examples: ClassVar[str] = """Examples:
  nsde-policy tune --demos pendulum.zarr --env Pendulum-v1
  nsde-policy tune --demos my_robot --trials 12 --out out/arm           # again: continues
  nsde-policy tune --demos my_robot --steps 2000 --workers 2            # shorter trainings
  nsde-policy tune --demos my_robot --storage postgresql://HOST/tune    # on several machines
  nsde-policy train --demos my_robot --preset out/arm/preset.json"""
    out: Path = Path("out/tune")
    """Folder of trials, preset and final runs; its name is the name of the study."""
    storage: str | None = None
    """Optuna storage that processes share, a file or a URL such as sqlite:///tune.db; default: a file in
    --out."""
    trials: Count = 24
    """Settings to try, by all processes together; each is trained with up to three seeds."""
    episodes: Count = 40
    """Episodes that score a training."""
    workers: Natural = 0
    """Local processes that join; 0: one per core, at most 8, or 4 on a GPU. Results depend on it."""
    json: JsonFileFlag = None

    def check(self) -> None:
        """Refuse missing packages before torch is imported."""
        import_optional("optuna", "tune")
        super().check()

    def start(self) -> None:
        """Search, and print the best settings with their score."""
        from nsde_policy.eval.rollouts.pool import GPU_SHARE
        from nsde_policy.eval.tune.search import ROUNDS
        from nsde_policy.eval.tune.space import format_values
        from nsde_policy.torch_threads import count_cores

        search = self._make_search()
        episodes = f" and {search.episodes} episodes" if search.episodes else ""
        print(
            f"budget: {self.trials} trials of 1 to {ROUNDS} trainings of about {search.config.train.steps} "
            f"steps{episodes} each",
            file=sys.stderr,
        )
        usual = min(count_cores(), MOST_WORKERS) if self.device == "cpu" else round(1 / GPU_SHARE)
        try:
            result = search.run(self.workers or usual)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the same command continues") from None
        if result is None:
            print("another process compares the best settings and shows the result", file=sys.stderr)
            return
        best, tuned, default = result
        results = {"settings": best.params, "trial": best.number, "best": tuned, "default": default}
        table = f"settings  {format_values(best.params)}\nstart     {default}\ntuned     {tuned}"
        print_results(self.json, json.dumps(results, indent=2, default=vars), table)
        if tuned.value <= default.value:
            print("the tuned settings do not beat the starting settings on other seeds", file=sys.stderr)
        preset = shlex.quote(str(search.out / PRESET_FILE))
        print(f"wrote {preset}: train with --preset {preset} and the same other flags", file=sys.stderr)

    def _make_search(self) -> "Search":
        """Return the settings to start from, and how candidates are trained and scored."""
        from nsde_policy.eval.tune.search import STUDY_FILE, Search

        request = self._make_request()
        resolved = request.resolve()
        task, config = resolved.task, resolved.config
        demos = resolved.demos if isinstance(resolved.demos, Path) else None
        if demos is not None:
            check_recorded_task(get_task(task), demos)  # before the study is created
        has_env, out = get_task(task).env_id is not None, self.out.resolve()
        validation = self.validation or (0.0 if has_env else HELD_OUT)
        return Search(
            config=config.replace_parts(selection={"horizon": config.horizon}),  # the same for all chunks
            options=replace(request.options, resume=True, validation=validation),
            demos=demos,
            task=task,
            env=self.env,
            env_kwargs=resolved.env_kwargs,
            out=out,
            storage=self.storage or str(out / STUDY_FILE),
            trials=self.trials,
            episodes=self.episodes if has_env else 0,
            seed=self.seed,
        )
