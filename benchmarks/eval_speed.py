"""Time of an evaluation on two cores, against the same policy stepped through gym-pusht.

    python benchmarks/eval_speed.py --gym-pusht /path/to/python

`--gym-pusht` is the Python of a separate environment, as for `env_speed.py`, of the same version as this one;
it takes missing packages, such as torch, from this one. Both play the shipped policy from the same starts
(rule `gym_pusht`) with the same code: `nsde-policy eval --workers 2` here, and one process that plays one
episode after the other there. They take turns; reported are medians over the rounds, with the extremes:

- whole: from the start of the process to its exit, with all imports;
- playing: from the end of the first episode to the end of the last;
- processor time of the whole, which other load on the machine affects least.

Ratios are of control steps per second, of neighbouring runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
FIRST = 100_000

OURS = """
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
config = RolloutConfig(env_kwargs={"reset_rule": "gym_pusht"})
played = RolloutPool(None, config, workers=workers).evaluate(seeds)
"""
# Runs in the other Python, whose own packages come first.
THEIRS = """
sys.path.append(packages)
import gymnasium, gym_pusht, torch
from nsde_policy.eval.rollout import Player, RolloutConfig
from nsde_policy.tasks.pusht import PushTTask

class Success(gymnasium.Wrapper):
    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return obs, {**info, "coverage": self.unwrapped._get_coverage()}

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, {**info, "success": bool(info["is_success"])}

class GymPushTTask(PushTTask):
    def make_env(self, **kwargs):
        return Success(gymnasium.make("gym_pusht/PushT-v0"))

torch.set_num_threads(1)
player = Player(None, RolloutConfig(GymPushTTask()))
played = (player.play(seed) for seed in seeds)
"""
HEAD = """
import json, sys, time
seeds, workers, packages = range(int(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3]), sys.argv[4]
"""
TAIL = """
results, ends = zip(*((result, time.perf_counter()) for result in played))
print(json.dumps({
    "playing_s": ends[-1] - ends[0],
    "steps": [result.steps for result in results],
    "successes": sum(result.success for result in results),
}))
"""


class Speed(NamedTuple):
    """Times, steps and successes of one run."""

    whole_s: float
    playing_s: float
    cpu_s: float
    steps: int
    steps_playing: int
    """Steps of the episodes that began after the first had ended."""
    successes: int


def run(python: str, code: str, episodes: int, workers: int) -> Speed:
    packages = sysconfig.get_path("purelib")
    arguments = map(str, (FIRST, FIRST + episodes, workers, packages))
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(
        [python, "-c", HEAD + code + TAIL, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    whole_s, after = time.perf_counter() - started, os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    steps = printed["steps"]
    return Speed(whole_s, printed["playing_s"], cpu_s, sum(steps), sum(steps[workers:]), printed["successes"])


def format_spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gym-pusht", required=True, help="Python of an environment that has gym-pusht")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(run(sys.executable, OURS, args.episodes, args.workers))
        theirs.append(run(args.gym_pusht, THEIRS, args.episodes, 1))
        for name, last in (("nsde_policy", ours[-1]), ("gym-pusht", theirs[-1])):
            print(
                f"{name:<12}{last.whole_s:.1f} s, playing {last.playing_s:.1f} s, "
                f"processor {last.cpu_s:.1f} s; {last.steps} control steps, {last.successes} successes",
                flush=True,
            )
    both = list(zip(ours, theirs, strict=True))
    print(
        f"{args.episodes} episodes with {args.workers} workers, whole: "
        f"{format_spread([a.whole_s for a in ours])} s"
    )
    for name, ratios in {
        "whole": [(a.steps / a.whole_s) / (b.steps / b.whole_s) for a, b in both],
        "playing": [(a.steps_playing / a.playing_s) / (b.steps_playing / b.playing_s) for a, b in both],
        "processor time": [(a.steps / a.cpu_s) / (b.steps / b.cpu_s) for a, b in both],
    }.items():
        print(f"times gym-pusht's speed, {name}: {format_spread(ratios)}, {args.rounds} rounds")


if __name__ == "__main__":
    main()
