"""Print what `auto` chooses for random subsets of demonstrations, and how often it chooses the same.

    python benchmarks/auto_choice.py ../shared/demos/g1_real.zarr --of 20 --episodes 15

A subset that gets another row of the guide's table shows that the choice depends on a few episodes.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from nsde_policy.data import load_demonstrations
from nsde_policy.data.statistics import DemoStatistics, choose_chunk, measure_statistics
from nsde_policy.data.types import Demonstrations


def name_choice(statistics: DemoStatistics) -> str:
    """Name the row of the guide's table, and the chunk."""
    chunk = choose_chunk(statistics)
    if statistics.is_predictable:
        row = "predictable"
    elif statistics.goal_frames >= chunk:
        row = "common goal"
    else:
        row = "branching" if statistics.has_branches else "none"
    return f"{row}, chunk {chunk}"


def count_choices(demos: Demonstrations, episodes: int, draws: int) -> Counter[str]:
    """Count what is chosen for random subsets of so many episodes."""
    rng = np.random.default_rng(0)
    subsets = (np.sort(rng.choice(len(demos), episodes, replace=False)) for _ in range(draws))
    return Counter(name_choice(measure_statistics(demos.select(subset.tolist()))) for subset in subsets)


def main() -> None:
    """Print a line for each store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demos", nargs="+", type=Path)
    parser.add_argument("--of", type=int, default=20, help="the first episodes of each store that are used")
    parser.add_argument("--episodes", type=int, default=15, help="episodes of a subset")
    parser.add_argument("--draws", type=int, default=20)
    args = parser.parse_args()
    for path in args.demos:
        demos = load_demonstrations(path).take(args.of)
        choices = count_choices(demos, min(args.episodes, len(demos)), args.draws)
        listed = "; ".join(f"{count} × {choice}" for choice, count in choices.most_common())
        print(f"{path.name}: {name_choice(measure_statistics(demos))} for {len(demos)} episodes; {listed}")


if __name__ == "__main__":
    main()
