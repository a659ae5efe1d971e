"""Replay demonstrations open loop: the recorded actions from the recorded start, without a policy.

The strictest test of an environment: contacts amplify every difference, so a demonstration that comes out
as recorded was recorded with the same physics.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from nsde_policy.data import Demonstrations, Episode
from nsde_policy.data.readers import open_source
from nsde_policy.errors import DemoError, EnvError
from nsde_policy.tasks import Task
from nsde_policy.tasks.adapter import EnvAdapter

Start = Literal["state", "seed"]
"""Start of a replay: the recorded first state, passed as `options["state"]` to the environment's reset, or
the seed of the episode. Stores hold float32; a seed gives the first state in full precision."""
SEED_ARRAYS = ("episode_seed", "seed")
"""Where a store records the seed of each episode; without both, episode k has seed k."""
EXACT_ERROR = 0.01
"""Largest error of a replay that counts as exact, in units of the observation."""


@dataclass(frozen=True)
class Replay:
    """Differences between one demonstration and its replay."""

    episode: int
    position_error: float
    """Largest difference of an observation that is not an angle."""
    angle_error: float
    """Largest difference of an angle, radians."""
    success: bool | None
    """Whether the replay succeeds; None if the environment does not say."""
    unused_actions: int = 0
    """Recorded actions that are left when the environment ends the episode."""


def describe_replays(replays: Sequence[Replay]) -> str:
    """Return a summary of all episodes for a terminal: the median and the worst one."""
    errors = np.array([replay.position_error for replay in replays])
    worst = max(replays, key=lambda replay: replay.position_error)
    reports_success = any(replay.success is not None for replay in replays)
    won = f", {sum(bool(replay.success) for replay in replays)} succeed" if reports_success else ""
    ended = sum(replay.unused_actions > 0 for replay in replays)
    early = f", {ended} end before the last recorded action" if ended else ""
    turned = f" and {worst.angle_error:.2g} rad" if worst.angle_error else ""
    return (
        f"{len(replays)} episodes replayed open loop{won}{early}\n"
        f"largest error  median {np.median(errors):.2g}, worst {errors.max():.2g}{turned} "
        f"(episode {worst.episode}); "
        f"{(errors < EXACT_ERROR).sum()} episodes stay within {EXACT_ERROR}"
    )


def read_seeds(path: Path) -> list[int] | None:
    """Return the seed of each episode that demonstrations record, None if they record none."""
    with open_source(path) as source:
        info = source.read_info()
    return next((info[name].astype(int).tolist() for name in SEED_ARRAYS if name in info), None)


def replay_demonstrations(
    demos: Demonstrations, task: Task, *, start: Start = "state", seeds: Sequence[int] | None = None
) -> Iterator[Replay]:
    """Replay every episode of a store in the environment of a task; `seeds` by default 0, 1, …."""
    seeds = range(len(demos)) if seeds is None else seeds
    if len(seeds) < len(demos):
        raise DemoError(f"{demos.source} has {len(demos)} episodes, but records {len(seeds)} seeds")
    env = EnvAdapter.open(task, {"max_episode_steps": -1})
    env.check_sizes(demos.obs.shape[1], demos.act.shape[1])
    for k, episode in enumerate(demos):
        yield _replay(env, task, k, episode, seeds[k] if start == "seed" else None, list(demos.angles))
    env.close()


def _replay(
    env: EnvAdapter, task: Task, k: int, episode: Episode, seed: int | None, angles: list[int]
) -> Replay:
    """Replay an episode from its seed, or from its first state if that is None."""
    visited = [env.reset(seed, **({"options": {"state": episode.obs[0]}} if seed is None else {}))]
    rewards = []
    for action in episode.act:
        state, reward, is_over, info = env.step(action)
        visited.append((state, info))
        rewards.append(reward)
        if is_over:
            break
    out = np.array([state for state, _ in visited[: len(episode)]])
    off = np.abs(out - episode.obs[: len(out)])
    turn = np.minimum(off[:, angles], 2 * math.pi - off[:, angles])
    first = max(np.delete(off[0], angles).max(initial=0.0), turn[0].max(initial=0.0))
    if seed is None and first > EXACT_ERROR:
        raise EnvError(
            f"environment {task.env_id} does not start in the recorded state (off by {first:.3g}): its reset "
            'must use options["state"], or give --start seed if episodes were recorded from seeds'
        )
    with env.guard("scoring the episode"):
        success = task.outcome(rewards, [info for _, info in visited]).success
    return Replay(
        episode=k,
        position_error=float(np.delete(off, angles, axis=1).max(initial=0.0)),
        angle_error=float(turn.max(initial=0.0)),
        success=success,
        unused_actions=len(episode) - len(rewards),
    )
