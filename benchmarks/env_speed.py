"""Control steps per second through the Gymnasium interface: Avoiding, and Push-T against gym-pusht.

    python benchmarks/env_speed.py [--gym-pusht /path/to/python]

Without `--gym-pusht`, only our environments are timed. It is the Python of a separate environment, since
gym-pusht needs pymunk < 7:

    python -m venv /tmp/gym-pusht && /tmp/gym-pusht/bin/pip install 'gym-pusht==0.1.8' 'pymunk<7'

Both play the same actions, one process each, on one core, in turns. Reported is the median of the ratios of
neighbouring runs, because absolute speeds vary with other load on the machine; times are CPU times.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

# Runs in both Pythons: the arguments name the package to import and the environment to make.
WORKER = """
import importlib, json, sys, time
import gymnasium, numpy
module, env_id, steps, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
importlib.import_module(module)
env = gymnasium.make(env_id, **options)
rng = numpy.random.default_rng(0)
if "Avoiding" in env_id:  # changes of the command that lead up the table
    targets = rng.normal((0, 0.006), 0.004, (steps, 2))
else:  # targets that wander over the block's part of the table, as a pushing agent's do
    targets = numpy.clip(256 + numpy.cumsum(rng.normal(0, 25, (steps, 2)), 0) % 300 - 150, 0, 512)
env.reset(seed=100000)
start = time.process_time()
for i in range(steps):
    _, _, terminated, truncated, _ = env.step(targets[i])
    if terminated or truncated:
        env.reset(seed=100000 + i)
print(steps / (time.process_time() - start))
"""


def steps_per_second(python: str, module: str, env_id: str, steps: int, options: dict[str, object]) -> float:
    command = [python, "-c", WORKER, module, env_id, str(steps), json.dumps(options)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gym-pusht", help="Python of an environment that has gym-pusht")
    parser.add_argument("--steps", type=int, default=6000, help="control steps of one run")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    args = parser.parse_args()

    report = {}
    for env_id in ("nsde_policy/Avoiding-v0", "nsde_policy/PushT-v0"):
        speeds = [
            steps_per_second(sys.executable, "nsde_policy.envs", env_id, args.steps, {})
            for _ in range(args.rounds)
        ]
        report[env_id] = {"nsde_policy": statistics.median(speeds), "rounds": args.rounds}
    for label, options in {
        "as made": {},
        "without Gymnasium's checker": {"disable_env_checker": True},
    }.items():
        if args.gym_pusht is None:
            break
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(
                steps_per_second(
                    sys.executable, "nsde_policy.envs", "nsde_policy/PushT-v0", args.steps, options
                )
            )
            theirs.append(
                steps_per_second(args.gym_pusht, "gym_pusht", "gym_pusht/PushT-v0", args.steps // 5, options)
            )
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        report[label] = {
            "nsde_policy": statistics.median(ours),
            "gym_pusht": statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
            "rounds": args.rounds,
        }
    if args.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{'':<30}{'nsde_policy':>12}{'gym-pusht':>12}   ratio (lowest … highest of {args.rounds})")
    for label, r in report.items():
        if "ratio" not in r:
            print(f"{label:<30}{r['nsde_policy']:>10,.0f}/s")
            continue
        print(
            f"{label:<30}{r['nsde_policy']:>10,.0f}/s{r['gym_pusht']:>10,.0f}/s"
            f"   {r['ratio']:.1f} ({r['ratio_low']:.1f} … {r['ratio_high']:.1f})"
        )


if __name__ == "__main__":
    main()
