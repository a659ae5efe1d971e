"""Simulate how often the 95 % intervals of entropy, and of success × entropy, cover the truth.

    python benchmarks/entropy_intervals.py

Each row draws `--repeats` evaluations of a policy whose modes have known probabilities and whose episodes
succeed with probability 0.9, and prints how many intervals hold the true value.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from nsde_policy.eval.compare.modes import ModeOutcomes, compute_entropy, estimate_diversity
from nsde_policy.files import replace_file

MODES = 24
EPISODES = (25, 100, 480)
SUCCESS = 0.9


def make_policies() -> dict[str, np.ndarray]:
    """Return probabilities of the modes, (24,), by name."""
    modes = np.arange(MODES)
    weights = {
        "all modes alike": np.ones(MODES),
        "12 modes alike": modes < 12,
        "4 modes of 40, 30, 20 and 10 %": np.array([4, 3, 2, 1, *[0] * (MODES - 4)]),
        "one mode of 90 %, the others alike": np.where(modes == 0, 9 * (MODES - 1), 1),
        "one mode of 99 %, the others alike": np.where(modes == 0, 99 * (MODES - 1), 1),
        "one mode of 99 %, one other": np.array([99, 1, *[0] * (MODES - 2)]),
        "each mode 0.8 times the one before": 0.8**modes,
    }
    return {name: np.asarray(each, float) / np.sum(each) for name, each in weights.items()}


def simulate(p: np.ndarray, episodes: int, repeats: int) -> dict[str, float]:
    """Return the true entropy, the mean estimate, and how many intervals hold the truth."""
    rng, truth = np.random.default_rng(0), float(compute_entropy(p * 1e12, corrected=False))
    values, covered = list[float](), np.zeros(2, int)
    for _ in range(repeats):
        drawn, won = rng.choice(MODES, episodes, p=p), rng.random(episodes) < SUCCESS
        outcomes = ModeOutcomes.from_columns(MODES, drawn.tolist(), won.tolist(), None)
        found = estimate_diversity([outcomes], n=episodes)
        values.append(found.entropy.value)
        for i, (each, true) in enumerate(((found.entropy, truth), (found.product, SUCCESS * truth))):
            covered[i] += each.low - 1e-9 <= true <= each.high + 1e-9
    entropy, product = covered.tolist()
    return {"truth": truth, "mean": float(np.mean(values)), "entropy": entropy, "product": product}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--out", type=Path, help="also write the numbers to this file")
    args = parser.parse_args()
    rows = []
    for name, p in make_policies().items():
        for episodes in EPISODES:
            row = simulate(p, episodes, args.repeats)
            rows.append({"policy": name, "episodes": episodes, "repeats": args.repeats, **row})
            print(rows[-1], flush=True)
    if args.out:
        replace_file(args.out, json.dumps(rows, indent=1).encode())


if __name__ == "__main__":
    main()
