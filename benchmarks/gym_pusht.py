"""Check that Push-T equals gym-pusht: the same targets, step by step, from states and from frames.

    python benchmarks/gym_pusht.py --python /path/to/python

`--python` is the Python of an environment with gym-pusht, which needs pymunk < 7:
`python -m venv /tmp/gym-pusht && /tmp/gym-pusht/bin/pip install 'gym-pusht==0.1.8' 'pymunk<7'`. Targets
depend on the seed only: they wander, or jump every few periods, which presses the block into the walls.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROUNDING = 1e-9
"""Larger differences count, in pixels and radians."""
# Runs in both Pythons; the arguments name the package to import and the environment to make.
WORKER = """
import importlib, json, sys
import gymnasium, numpy as np
module, env_id, path = sys.argv[1:4]
options, jumps, count = map(json.loads, sys.argv[4:])
importlib.import_module(module)
env = gymnasium.make(env_id, disable_env_checker=True, **options)

def make_targets(seed):
    rng = np.random.default_rng(seed)
    if jumps:
        return np.repeat(rng.uniform(0, 512, (60, 2)), 5, 0)
    return np.clip(rng.uniform(0, 512, 2) + np.cumsum(rng.normal(0, 40, (300, 2)), 0), 0, 512)

seen = {}
def keep(seed, obs, info, reward, ended):
    parts = obs if isinstance(obs, dict) else {"obs": obs}
    values = {**{"obs." + k: v for k, v in parts.items()}, "reward": reward, "terminated": ended}
    values |= {"info." + k: v for k, v in info.items() if k not in ("coverage", "success", "n_contacts")}
    for key, value in values.items():
        seen.setdefault(f"{seed}/{key}", []).append(value)

for seed in range(count):
    keep(seed, *env.reset(seed=seed), 0.0, False)
    for target in make_targets(seed):
        obs, reward, terminated, truncated, info = env.step(target)
        keep(seed, obs, info, reward, terminated)
        if terminated or truncated:
            break
np.savez(path, **{key: np.array(values) for key, values in seen.items()})
"""


def roll_out(
    python: str, module: str, env_id: str, options: dict[str, str], jumps: bool, count: int
) -> dict[str, np.ndarray]:
    """Step an environment in another process and return everything it returned."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seen.npz"
        values = map(json.dumps, (options, jumps, count))
        command = [python, "-c", WORKER, module, env_id, str(path), *values]
        subprocess.run(command, cwd=Path(__file__).parents[1], check=True)
        with np.load(path) as arrays:
            return dict(arrays)


def compare(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the number of episodes whose observations differ, and the largest difference of each entry."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    different, worst = set[str](), dict[str, float]()
    for key, a in ours.items():
        seed, entry = key.split("/")
        b = theirs[key]
        off = float(np.inf if a.shape != b.shape else np.abs(a.astype(float) - b).max())
        worst[entry] = max(worst.get(entry, 0.0), off)
        if entry.startswith("obs") and off > ROUNDING:
            different.add(seed)
        if entry == "obs.pixels" and a.shape == b.shape:
            equal = float((a == b).all(-1).mean())
            worst["equal pixels"] = min(worst.get("equal pixels", 1.0), equal)
    return {"different episodes": len(different), **worst}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, help="Python of an environment that has gym-pusht")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each kind; frames: a tenth")
    args = parser.parse_args()
    for obs_type in ("state", "pixels_agent_pos"):
        count = args.episodes // 10 if "pixels" in obs_type else args.episodes
        for jumps in (False, True):
            own = {"obs_type": obs_type, "reset_rule": "gym_pusht"}
            ours = roll_out(sys.executable, "nsde_policy.envs", "nsde_policy/PushT-v0", own, jumps, count)
            options = {"obs_type": obs_type}
            theirs = roll_out(args.python, "gym_pusht", "gym_pusht/PushT-v0", options, jumps, count)
            found = ", ".join(f"{entry} {off:.3g}" for entry, off in compare(ours, theirs).items())
            print(f"{obs_type}, {'jumping' if jumps else 'wandering'} targets, {count} episodes: {found}")


if __name__ == "__main__":
    main()
