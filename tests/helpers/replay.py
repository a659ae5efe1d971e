"""Replay demonstrations open loop: the recorded actions from the recorded start, without a policy."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nsde_policy.data import Demonstrations
from nsde_policy.data.readers import open_source
from nsde_policy.tasks import Task
from nsde_policy.tasks.adapter import EnvAdapter


def read_seeds(store: Path) -> list[int]:
    """Return the seed of each episode of a store."""
    with open_source(store) as source:
        info = source.read_info()
    seeds: list[int] = info["episode_seed" if "episode_seed" in info else "seed"].astype(int).tolist()
    return seeds


def replay_episodes(
    demos: Demonstrations, task: Task, seeds: Sequence[int] | None = None
) -> Iterator[tuple[float, bool | None]]:
    """Replay every episode; yield the largest error of an observation, and whether the replay succeeds.

    Episodes start from `seeds`, or else from their recorded first states.
    """
    env, angles = EnvAdapter.open(task, {"max_episode_steps": -1}), list(demos.angles)
    for k, episode in enumerate(demos):
        start = env.reset(k if seeds is None else seeds[k])
        if seeds is None:
            start = env.env.reset(options={"state": episode.obs[0]})
        steps = [env.step(action.astype(np.float64)) for action in episode.act]
        states = np.array([start[0], *(step[0] for step in steps[:-1])])
        errors = np.abs(states - episode.obs)
        errors[:, angles] = np.minimum(errors[:, angles], 2 * math.pi - errors[:, angles])
        outcome = task.outcome([step[1] for step in steps], [start[1], *(step[3] for step in steps)])
        yield float(errors.max()), outcome.success
    env.close()
