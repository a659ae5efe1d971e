"""Seconds to a good policy: a short training on Push-T, from the start of the program, and its score.

On a GPU, the preset `default` is trained for fewer steps; on a CPU, the preset `fast` as it is.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.eval.machine import device_name
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.eval.rollouts.scores import score_rollouts
from nsde_policy.run_directory import RunDirectory
from timing.common import Options

STEPS, DYNAMICS_STEPS = 6_000, 3_000
"""Training steps of the policy and of its dynamics model on a GPU, chosen on seeds 200000 and up."""
TRAININGS, EPISODES = 3, 200


def measure_short(options: Options) -> list[dict[str, Any]]:
    """Train with several seeds as the command line does, and roll each policy out on the reported seeds."""
    seeds = range(1 if options.smoke else TRAININGS)
    with tempfile.TemporaryDirectory() as folder:
        if options.device != "cpu":
            _train(options, Path(folder) / "first", 0)  # compiles the modules, as an earlier use has done
        return [_measure(options, Path(folder) / str(seed), seed) for seed in seeds]


def _train(options: Options, path: Path, seed: int) -> float:
    """Train and return the seconds from the start of the program to its end."""
    demos = ["--demos", str(options.demos)] if options.demos else []
    command = [sys.executable, "-m", "nsde_policy", "train", *demos, "--device", options.device]
    if options.device == "cpu":
        command += ["--preset", "fast"]
    if options.smoke or options.device != "cpu":
        steps, dynamics = (3, 3) if options.smoke else (STEPS, DYNAMICS_STEPS)
        command += ["--steps", str(steps), "--selection.train.steps", str(dynamics)]
    started = time.perf_counter()
    subprocess.run([*command, "--seed", str(seed), "--out", str(path)], check=True, capture_output=True)
    return time.perf_counter() - started


def _measure(options: Options, path: Path, seed: int) -> dict[str, Any]:
    seconds = _train(options, path, seed)
    run = RunDirectory(path)
    last = [[*each.read_metrics()][-1] for each in (run, run.selection)]
    episodes = 2 if options.smoke else EPISODES
    scores = score_rollouts(path, RolloutConfig(episodes=episodes))
    return {
        "device": device_name(options.device),
        "demos": "human" if options.demos else "embedded",
        "seed": seed,
        "steps": last[0]["step"],
        "dynamics_steps": last[1]["step"],
        "seconds": seconds,
        "start_s": seconds - sum(each["seconds"] for each in last),
        "episodes": episodes,
        "successes": sum(scores.columns.success or ()),
        "reward": float(np.mean(scores.columns.score)),
    }
