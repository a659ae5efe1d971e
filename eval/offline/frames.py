"""Recorded frames to score: which episodes a run has not seen, and which of their frames are scored."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from nsde_policy.core.targets import Transitions
from nsde_policy.data import Demonstrations
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.run_directory import RunRecord
from nsde_policy.training.dataset import build_transitions, get_first_action, load_training_demos

EPISODE_PARTS = ("all", "first", "last")
"""Parts of an episode that are scored apart: all frames, those of its first chunk, those of its last."""
MAX_FRAMES, MAX_CHUNK_FRAMES = 1000, 500
"""Frames of the part `all`, unless a stride is given, and of the first and last chunks that are scored."""
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Its multiples, modulo 1, are spread evenly over [0, 1)."""
GROUP_FRAMES = 20_000
"""Frames that are held in memory with their histories at once."""


@dataclass(frozen=True)
class ScoredEpisodes:
    """Episodes of a store that are scored."""

    demos: Demonstrations
    """The episodes, with the angle columns of the run."""
    episodes: tuple[int, ...]
    """Their indices in the store."""
    seen: bool
    """Whether the run was trained on them."""
    note: str
    """One sentence about the selection."""


def select_episodes(record: RunRecord, path: Path) -> ScoredEpisodes:
    """Load the episodes of a store that a run has not seen in training.

    All episodes of a store are scored, unless the run was trained on that store: then only those that it held
    out are, or all with a note if there are none.

    Raises:
        DemoError: If the sizes of observations or actions differ from those of the run.
    """
    settings = record.config.demos
    demos = load_training_demos(replace(settings, episodes=0), path)
    spec = record.layout
    found, expected = (demos.obs.shape[1], demos.act.shape[1]), (spec.obs_dim, spec.act_dim)
    if found != expected:
        raise DemoError(
            f"{path} has observations of {found[0]} and actions of {found[1]} numbers, the run was trained "
            f"on {expected[0]} and {expected[1]}: give --demos a store of the same robot"
        )
    used = settings.episodes or len(demos)
    trained_here = used <= len(demos) and demos.take(used).fingerprint == record.demos.fingerprint
    unseen = (*record.demos.held_out, *range(used, len(demos))) if trained_here else range(len(demos))
    seen = not unseen
    episodes = tuple(unseen) or tuple(range(len(demos)))
    note = f"all {len(demos)} episodes of {path}"
    if seen:
        note += ", which the run was TRAINED on: hold some out with `train --validation 0.1`"
    elif trained_here:
        note = f"the {len(episodes)} of {len(demos)} episodes of {path} that were held out of training"
    demos = demos if len(episodes) == len(demos) else demos.select(episodes)
    obs_angles = tuple(column for column in spec.circular if column < spec.obs_dim)
    act_angles = tuple(column - spec.obs_dim for column in spec.circular if column >= spec.obs_dim)
    demos = replace(demos, angles=obs_angles, act_angles=act_angles)
    return ScoredEpisodes(demos, episodes, seen, note)


@dataclass(frozen=True)
class FrameBatch:
    """Some frames with their histories, successors and the actions that were recorded from them on."""

    pairs: Transitions
    """States with real histories and their successors, one row per frame."""
    actions: npt.NDArray[np.float64]
    """Recorded actions, (frames, horizon, act_dim); the last one is repeated past the end of an episode."""
    known: npt.NDArray[np.bool_]
    """Which of them were recorded, (frames, horizon)."""
    episode: npt.NDArray[np.int64]
    """Number of each frame's episode, (frames,)."""
    parts: Mapping[str, npt.NDArray[np.bool_]]
    """Which frames belong to each of `EPISODE_PARTS`, (frames,)."""


def choose_stride(demos: Demonstrations) -> int:
    """Return the distance between scored frames that leaves about `MAX_FRAMES` of them."""
    return max(1, -(-len(demos.obs) // MAX_FRAMES))


def find_parts(demos: Demonstrations, *, chunk: int, stride: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which frames are scored in each of `EPISODE_PARTS`, (frames,).

    All frames of the first and last chunk of each episode are scored, or fewer if there are many episodes.
    With a stride, episodes start counting at different frames: if all counted from their first frame, which
    is often the hardest one, it would have too much weight.

    Raises:
        ConfigError: If no frame is left.
    """
    episode = np.repeat(np.arange(len(demos)), demos.lengths)
    time = np.arange(len(episode)) - demos.starts[episode]
    left = demos.lengths[episode] - time
    phase = ((np.arange(len(demos)) + 0.5) * GOLDEN_RATIO % 1 * stride).astype(np.int64)  # evenly spread
    every = (time - phase[episode]) % stride == 0
    if not every.any():
        raise ConfigError(f"--stride {stride} leaves no frame of {len(time)}; choose a smaller one")
    sparse = -(-len(demos) * chunk // MAX_CHUNK_FRAMES)
    return {
        "all": every,
        "first": (time < chunk) & (time % sparse == 0),
        "last": (left <= chunk) & ((chunk - left) % sparse == 0),
    }


def iterate_frames(
    demos: Demonstrations,
    record: RunRecord,
    parts: Mapping[str, npt.NDArray[np.bool_]],
    *,
    horizon: int,
    batch: int,
) -> Iterator[FrameBatch]:
    """Iterate over the frames of all parts in batches, with histories that do not span two episodes."""
    for first, group in _group_episodes(demos):
        pairs = build_transitions(
            group,
            **get_first_action(record.config.demos),
            history=record.config.model.history,
            final_action_weight=1.0,
        )
        episode = np.repeat(np.arange(len(group)), group.lengths)
        here = slice(demos.starts[first], demos.starts[first] + len(episode))
        inside = {part: mask[here] for part, mask in parts.items()}
        chosen = np.flatnonzero(np.any(list(inside.values()), axis=0))
        for rows in np.split(chosen, range(batch, len(chosen), batch)):
            ahead = rows[:, None] + np.arange(horizon)
            known = ahead < group.episode_ends[episode[rows]][:, None]
            ahead = np.where(known, ahead, rows[:, None])
            yield FrameBatch(
                pairs[torch.from_numpy(rows)],
                group.act[ahead].astype(np.float64),
                known,
                first + episode[rows],
                {part: mask[rows] for part, mask in inside.items()},
            )


def _group_episodes(demos: Demonstrations) -> Iterator[tuple[int, Demonstrations]]:
    """Iterate over groups of consecutive episodes, each with the index of its first one."""
    group = np.cumsum(demos.lengths) // GROUP_FRAMES
    for number in np.unique(group):
        episodes = np.flatnonzero(group == number)
        start, end = demos.starts[episodes[0]], demos.episode_ends[episodes[-1]]
        yield (
            int(episodes[0]),
            replace(
                demos,
                obs=demos.obs[start:end],
                act=demos.act[start:end],
                episode_ends=demos.episode_ends[episodes] - start,
            ),
        )
