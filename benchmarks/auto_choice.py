"""Count how often `auto` chooses the same settings for random subsets of demonstrations.

    python benchmarks/auto_choice.py                                       # those of this package
    python benchmarks/auto_choice.py ../shared/demos/*.zarr --of 20 --episodes 15

All settings of a run are compared, and the rule of plan selection, but not the number of steps, which is
proportional to the number of frames. A subset that gets other settings shows that they depend on a few
episodes.
"""

import argparse
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from nsde_policy.assets import find_demos
from nsde_policy.data.statistics import measure_statistics
from nsde_policy.data.types import Demonstrations
from nsde_policy.run_config import RunConfig
from nsde_policy.selection.rule import Kind
from nsde_policy.tasks import Task, find_task, get_task
from nsde_policy.training.demos import find_env_rate, load_training_demos
from nsde_policy.training.presets import describe_settings
from nsde_policy.training.selection import choose_rule

Choice = tuple[RunConfig, Kind]
PACKAGED = ("avoiding", "avoiding_varied", "pusht")
"""Tasks with demonstrations in this package."""


def load_first(path: Path, episodes: int) -> tuple[Task, Demonstrations]:
    """Return the task that a store records, and its first episodes as a training reads them."""
    task = get_task(find_task(path).name)
    demos = load_training_demos(replace(task.training.demos, obs_columns=()), path)
    return task, replace(demos.take(episodes), rate_hz=demos.rate_hz or find_env_rate(task))


def choose(task: Task, demos: Demonstrations) -> Choice:
    """Return the settings of `auto`, each training of them with one step, and the rule of plan selection."""
    statistics = measure_statistics(demos)
    config = task.preset("auto", statistics=statistics)
    selection = replace(config.selection, train=replace(config.selection.train, steps=1))
    config = replace(config, train=replace(config.train, steps=1), selection=selection)
    return config, choose_rule(statistics)[0]


def count_choices(task: Task, demos: Demonstrations, episodes: int, draws: int) -> Counter[Choice]:
    """Count what is chosen for random subsets of so many episodes."""
    rng = np.random.default_rng(0)
    subsets = [np.sort(rng.choice(len(demos), episodes, replace=False)).tolist() for _ in range(draws)]
    return Counter(choose(task, demos.select(subset)) for subset in subsets)


def describe(choice: Choice) -> str:
    """Describe a choice in one line."""
    config, rule = choice
    return f"{describe_settings(config).removeprefix('train.steps 1, ')}, select {rule}"


def main() -> None:
    """Print how often each choice is made, for each store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "demos", nargs="*", type=Path, help="stores of demonstrations; default: those of this package"
    )
    parser.add_argument("--of", type=int, default=20, help="the first episodes of each store that are used")
    parser.add_argument("--episodes", type=int, default=15, help="episodes of a subset")
    parser.add_argument("--draws", type=int, default=20)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    for path in args.demos or [find_demos(name) for name in PACKAGED]:
        task, demos = load_first(path, args.of)
        choices = count_choices(task, demos, min(args.episodes, len(demos)), args.draws)
        print(f"{path.name}: {len(demos)} episodes: {describe(choose(task, demos))}")
        for choice, count in choices.most_common():
            print(f"  {count:3} of {args.draws}: {describe(choice)}")


if __name__ == "__main__":
    main()
