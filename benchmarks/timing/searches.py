"""A search for settings, and the same trials by a schedule that knows all of them beforehand."""

import tempfile
import time
from concurrent.futures import Future, as_completed, wait
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_sharing import share_gpu

from nsde_policy.cli.tune import Tune
from nsde_policy.eval.generate import GenerateConfig, generate
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.tune.search import Search
from nsde_policy.eval.tune.trial import Trial, TuneSetup, apply_values, run_trial
from nsde_policy.eval.workers import WorkerPool
from nsde_policy.training.train import TrainOptions
from timing.common import Options

TRIALS, EPISODES, WORKERS, STEPS = 24, 40, 8, 5_000
ENV, EXPERT, DEMONSTRATIONS = "Pendulum-v1", "experts:swing_up", 30


def measure_search(options: Options) -> list[dict[str, Any]]:
    """Search settings for a pendulum on processes that share the device, then repeat its trials."""
    trials, episodes, demonstrations = (2, 1, 2) if options.smoke else (TRIALS, EPISODES, DEMONSTRATIONS)
    with tempfile.TemporaryDirectory() as folder, share_gpu() if options.device == "cuda" else nullcontext():
        store, out = Path(folder) / "demos.zarr", Path(folder) / "search"
        generate(EXPERT, store, GenerateConfig(demonstrations, env=ENV, only_success=False))
        _, _, _, config = Tune(demos=store, env=ENV).prepare()
        config = config.replace_parts(train={"steps": 4 if options.smoke else STEPS})
        training = TrainOptions(options.device, resume=True)
        setup = TuneSetup(config, training, store, ENV, ENV, {}, offline=False)
        out.mkdir()
        began = time.perf_counter()
        search = Search(setup, out, trials=trials, episodes=episodes, seed=0)
        with WorkerPool(WORKERS) as pool:
            values, best, default = search.run(pool, resume=False)
        searched = time.perf_counter()
        repeat_trials(setup, search.asked, Path(folder) / "repeated")
        repeated = time.perf_counter()
    return [
        {
            "device": device_name(options.device),
            "trainings": len({trial.run for trial in search.asked}),
            "rollouts": sum(len(trial.seeds) for trial in search.asked),
            "search_s": searched - began,
            "schedule_s": repeated - searched,
            "ratio": (searched - began) / (repeated - searched),
            "settings": values,
            "before": str(default),
            "tuned": str(best),
        }
    ]


def repeat_trials(setup: TuneSetup, trials: list[Trial], out: Path) -> None:
    """Run known trials in new runs: the longest trainings first, further rollouts of each run after it."""
    moved = [replace(trial, run=out / trial.run.name) for trial in trials]
    first = {trial.run: trial for trial in reversed(moved)}
    others = [trial for trial in moved if trial is not first[trial.run]]
    longest = sorted(first.values(), key=lambda t: -apply_values(setup.config, t.trained).train.steps)
    with WorkerPool(WORKERS) as pool:
        jobs = {pool.submit(run_trial, setup, trial): trial.run for trial in longest}
        waiting = list[Future[Any]]()
        for job in as_completed(jobs):
            ready = [trial for trial in others if trial.run == jobs[job]]
            waiting += [pool.submit(run_trial, setup, trial) for trial in ready]
        wait(waiting)
