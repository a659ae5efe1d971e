"""Compare Push-T with gym-pusht: the same targets, step by step, for every type of observation.

    python benchmarks/env_match.py --gym-pusht /path/to/python

`--gym-pusht` is the Python of a separate environment, as for `env_speed.py`. Targets depend on the seed only:
they wander, or jump anywhere every few periods, which presses the block into walls and corners. Printed are
the episodes that differ by more than rounding and, for frames, the share of equal pixels; then the largest
differences of observations, rewards, ends and each entry of `info`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

OBS_TYPES = ("state", "environment_state_agent_pos", "pixels_agent_pos")
ROUNDING = 1e-9
"""Larger differences count, in pixels and radians: the corners of the block are computed in another order."""

# Runs in both Pythons; the arguments name the package to import and the environment to make.
WORKER = """
import importlib, json, sys
import gymnasium, numpy as np
module, env_id, path = sys.argv[1:4]
options, jumps, seeds = map(json.loads, sys.argv[4:])
importlib.import_module(module)
env = gymnasium.make(env_id, disable_env_checker=True, **options)

def make_targets(seed):
    rng = np.random.default_rng(seed)
    if jumps:
        return np.repeat(rng.uniform(0, 512, (60, 2)), 5, 0)
    return np.clip(rng.uniform(0, 512, 2) + np.cumsum(rng.normal(0, 40, (300, 2)), 0), 0, 512)

played = {}
def keep(seed, obs, info, reward, ended):
    parts = obs if isinstance(obs, dict) else {"obs": obs}
    values = {**{"obs." + k: v for k, v in parts.items()}, "reward": reward, "terminated": ended}
    values |= {"info." + k: v for k, v in info.items() if k not in ("coverage", "success", "contacts")}
    for key, value in values.items():
        played.setdefault(f"{seed}/{key}", []).append(value)

for seed in range(*seeds):
    keep(seed, *env.reset(seed=seed), 0.0, False)
    for target in make_targets(seed):
        obs, reward, terminated, truncated, info = env.step(target)
        keep(seed, obs, info, reward, terminated)
        if terminated or truncated:
            break
np.savez(path, **{key: np.array(values) for key, values in played.items()})
"""


def play(python: str, module: str, env_id: str, options: dict[str, str], jumps: bool, n: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "played.npz"
        values = map(json.dumps, (options, jumps, (0, n)))
        command = [python, "-c", WORKER, module, env_id, str(path), *values]
        subprocess.run(command, cwd=Path(__file__).parents[1], check=True)
        with np.load(path) as arrays:
            return dict(arrays)


def compare(ours: dict, theirs: dict) -> tuple[int, dict[str, float], float]:
    """Return the episodes that differ in an observation, largest differences by entry, equal pixels."""
    different, worst, equal = set(), {}, []
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    for key, a in ours.items():
        seed, entry = key.split("/")
        b = theirs[key]
        off = np.inf if a.shape != b.shape else np.abs(a.astype(float) - b).max()
        worst[entry] = max(worst.get(entry, 0.0), float(off))
        if entry.startswith("obs") and off > ROUNDING:
            different.add(seed)
        if entry == "obs.pixels" and a.shape == b.shape:
            equal.append((a == b).all(-1).mean())
    return len(different), worst, float(np.mean(equal)) if equal else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gym-pusht", required=True, help="Python of an environment that has gym-pusht")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each kind; frames: a tenth")
    args = parser.parse_args()
    for obs_type in OBS_TYPES:
        n = args.episodes // 10 if "pixels" in obs_type else args.episodes
        for jumps in (False, True):
            options = {"obs_type": obs_type}
            ours = play(
                sys.executable,
                "nsde_policy.envs",
                "nsde_policy/PushT-v0",
                {**options, "reset_rule": "gym_pusht"},
                jumps,
                n,
            )
            theirs = play(args.gym_pusht, "gym_pusht", "gym_pusht/PushT-v0", options, jumps, n)
            different, worst, equal = compare(ours, theirs)
            steps = sum(len(value) - 1 for key, value in ours.items() if key.endswith("/reward"))
            print(
                f"{obs_type}, {'jumping' if jumps else 'wandering'} targets: {n} episodes, {steps} steps, "
                f"{different} differ, equal pixels {equal:.5f}"
            )
            print("  " + ", ".join(f"{entry} {off:.2g}" for entry, off in worst.items()), flush=True)


if __name__ == "__main__":
    main()
