"""Statistics of demonstrations that settings are chosen by: sizes, movement, a common goal and branching.

Predictability and branching come from nearest neighbours: frames of other episodes that look most like a
frame show how the demonstrators went on from there. If the nearest one went on alike, the demonstrations are
predictable. If the neighbours went on in two ways, and where they stand does not tell which, they branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .goal import find_goal, is_goal_certain
from .types import Demonstrations

NEIGHBOURS = 16
"""Episodes compared with a frame, each by its most similar frame. Fewer show no branching: two groups of ten
points are tight by chance too often."""
FEWEST_NEIGHBOURS = 6
"""Fewest episodes compared with a frame; from fewer, nothing is known."""
QUERIES, CANDIDATES = 1_000, 20_000
"""Most frames that are compared, and most frames they are compared with."""
LOOKAHEAD = 8
"""Frames are compared by their change over one part of this many of a median episode."""
PREDICTABLE = 0.2
"""Unexplained fraction below which demonstrations are predictable. Measured: below 0.2 for trained and
scripted demonstrators of 16 tasks (0.35 and 0.5 from ten episodes of two of them), above 0.24 for people."""
GROUP_SIZE = 3
"""Fewest neighbours that went on in the same way."""
SEPARATION = 0.7
"""Fraction of the neighbours' variance that lies between two groups where frames branch. The best split of
one normal distribution explains at most 0.64."""
LEAST_SPREAD = 0.15
"""Smallest variance of the neighbours where frames branch, as a fraction of the variance over all frames."""
CONFUSION = 0.5
"""Fewest neighbours that stand next to one of the other group, relative to chance, where frames branch."""
BRANCHING = 0.06
"""Fraction of branching frames from which demonstrations branch. Measured: 0.07 to 0.19 for random routes
around obstacles, at most 0.05 for people and scripts."""


@dataclass(frozen=True)
class DemoStatistics:
    """What settings are chosen by."""

    frames: int
    dim: int
    """Dimensions of a state: observation and action."""
    rate_hz: float | None
    """Frames per second; None if unknown."""
    median_length: int
    """Frames of a median episode."""
    unexplained_fraction: float
    """Fraction of the variance of future changes that the most similar frame of another episode does not
    predict: near 0 for a deterministic demonstrator, near 1 if similar frames tell nothing."""
    branching_fraction: float
    """Fraction of the frames from which similar frames go on in two ways."""
    movement: float = 0.0
    """Root mean square change of an observation per frame, relative to the spread of its column; the median
    over columns."""
    robot_movement: float = 0.0
    """The same without features of camera frames, which jitter."""
    goal_frames: float = 0.0
    """Frames that a demonstration spends near the place where all end, on average; 0 if it is not clear which
    columns end alike, or there are few episodes."""

    def describe(self) -> str:
        """Describe the demonstrations in one line."""
        rate = "at an unknown rate" if self.rate_hz is None else f"at {self.rate_hz:g} Hz"
        size = f"{self.frames} frames of {self.dim} dimensions {rate}"
        kind = (
            "with a common goal" if self.has_goal
            else "branching" if self.has_branches
            else "without branches or a common goal"
        )  # fmt: skip
        return f"{size}, {kind}"

    def without_comparison(self) -> "DemoStatistics":
        """Return the statistics as if frames had not been compared."""
        return replace(self, unexplained_fraction=1.0, branching_fraction=0.0)

    @property
    def has_goal(self) -> bool:
        """Whether demonstrators spend time near a common goal; a script that stops there does not correct."""
        return not self.is_predictable and self.goal_frames >= _choose_commitment(self)

    @property
    def is_predictable(self) -> bool:
        """Whether similar frames are followed by similar ones, as with a deterministic demonstrator."""
        return self.unexplained_fraction < PREDICTABLE and not self.has_branches

    @property
    def has_branches(self) -> bool:
        """Whether demonstrators go different ways from the same place."""
        return self.branching_fraction >= BRANCHING


def measure_statistics(demos: Demonstrations, image_features: int = 0) -> DemoStatistics:
    """Measure the statistics of demonstrations, whose last columns may be features of images."""
    states = _scale_states(demos)
    goal = find_goal(demos, image_features) if is_goal_certain(demos, image_features) else None
    unexplained, branching = _compare_neighbours(demos, states, np.random.default_rng(0))
    movement = measure_movement(demos)
    return DemoStatistics(
        frames=len(demos.obs),
        dim=demos.obs.shape[1] + demos.act.shape[1],
        rate_hz=demos.rate_hz,
        median_length=int(np.median(demos.lengths)),
        unexplained_fraction=unexplained,
        branching_fraction=branching,
        movement=movement,
        robot_movement=movement,
        goal_frames=0.0 if goal is None else goal.frames_nearby(demos),
    )


def measure_movement(demos: Demonstrations) -> float:
    """Return how far observations change per frame, see `DemoStatistics.movement`; 0 if they never do.

    Columns that are constant in each episode, such as a goal, do not count.
    """
    obs = _scale_columns(demos.obs, demos.angles)
    changes = np.delete(np.diff(obs, axis=0), demos.episode_ends[:-1] - 1, axis=0)
    moves = (changes != 0).any(axis=0)
    return float(np.median(np.sqrt((changes[:, moves] ** 2).mean(axis=0)))) if moves.any() else 0.0


def _scale_states(demos: Demonstrations) -> np.ndarray:
    """Return observations and the actions before them, each column with unit variance, (frames, columns)."""
    previous = np.roll(demos.act, 1, axis=0)
    previous[demos.starts] = demos.act[demos.starts]
    columns = _scale_columns(demos.obs, demos.angles), _scale_columns(previous, demos.act_angles)
    return np.concatenate(columns, axis=1)


def _scale_columns(values: np.ndarray, angles: Sequence[int]) -> np.ndarray:
    """Return columns with unit variance, angles as sine and cosine, without columns that never change."""
    turned = values[:, list(angles)].astype(np.float64)
    straight = np.delete(values, list(angles), axis=1).astype(np.float64)
    columns = np.concatenate([straight, np.sin(turned), np.cos(turned)], axis=1)
    spread = columns.std(axis=0)
    moves = spread > 1e-9 * np.abs(columns).max(axis=0)
    scaled: np.ndarray = columns[:, moves] / spread[moves]
    return scaled


def _compare_neighbours(
    demos: Demonstrations, states: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the unexplained fraction and the fraction of branching frames."""
    ahead = max(int(np.median(demos.lengths)) // LOOKAHEAD, 1)
    frames = np.arange(len(states))
    episode = np.searchsorted(demos.episode_ends, frames, side="right")
    usable = frames[frames + ahead < demos.episode_ends[episode]]
    k = min(NEIGHBOURS, len(demos) - 1)
    if k < FEWEST_NEIGHBOURS or not len(usable) or not states.shape[1]:
        return 1.0, 0.0  # too few episodes to compare: nothing is known
    queries, candidates = (
        np.sort(rng.choice(usable, min(count, len(usable)), replace=False)) for count in (QUERIES, CANDIDATES)
    )
    change = states[usable + ahead] - states[usable]
    variance = change.var(axis=0).sum()
    near = _find_neighbours(states, episode, queries, candidates, k)
    if not variance or not len(near):
        return 1.0, 0.0
    futures = states[near + ahead] - states[near]
    error = states[queries + ahead] - states[queries] - futures[:, 0]
    unexplained = (error**2).sum(axis=1).mean() / 2 / variance  # neighbours vary as much as the frame itself
    branching = _find_branches(states[near], futures, variance).mean() if k == NEIGHBOURS else 0.0
    return float(min(unexplained, 1.0)), float(branching)


def _find_neighbours(
    states: np.ndarray, episode: np.ndarray, queries: np.ndarray, candidates: np.ndarray, k: int
) -> np.ndarray:
    """Return the most similar frame of each of the k most similar other episodes, (queries, k).

    The nearest comes first. Empty if the candidates are from too few episodes.
    """
    episodes, first = np.unique(episode[candidates], return_index=True)
    if len(episodes) <= k:
        return np.empty((0, k), np.int64)
    ends = np.append(first[1:], len(candidates))
    distance = np.full((len(queries), len(episodes)), np.inf)
    nearest = np.empty((len(queries), len(episodes)), np.int64)
    asked = states[queries]
    for row, (number, start, end) in enumerate(zip(episodes, first, ends, strict=True)):
        block = candidates[start:end]
        # squared distance without |asked|², which is the same for all
        gap = (states[block] ** 2).sum(axis=1) - 2 * asked @ states[block].T
        best = gap.argmin(axis=1)
        other = episode[queries] != number
        distance[other, row] = gap[np.arange(len(queries)), best][other]
        nearest[:, row] = block[best]
    order = np.argsort(distance, axis=1)[:, :k]
    return np.take_along_axis(nearest, order, axis=1)


def _find_branches(places: np.ndarray, futures: np.ndarray, variance: float) -> np.ndarray:
    """Return which frames branch, by their neighbours' places and futures, both (queries, k, columns).

    The futures split into two groups along their widest direction. In a deterministic system, groups come
    from places that differ, so most neighbours stand next to one of their own group.
    """
    k = futures.shape[1]
    centred = futures - futures.mean(axis=1, keepdims=True)
    total = (centred**2).sum(axis=(1, 2))
    widths, directions = np.linalg.eigh(np.einsum("qka,qja->qkj", centred, centred))
    position = directions[:, :, -1] * np.sqrt(np.maximum(widths[:, -1:], 0))
    ranks = position.argsort(axis=1).argsort(axis=1)
    position = np.sort(position, axis=1)
    sizes = np.arange(GROUP_SIZE, k - GROUP_SIZE + 1)
    sums = position.cumsum(axis=1)[:, sizes - 1]  # of the first group; the other group has the opposite sum
    between = sums**2 * (1 / sizes + 1 / (k - sizes))
    first = ranks < sizes[between.argmax(axis=1)][:, None]
    squares = (places**2).sum(axis=2)
    gap = squares[:, :, None] + squares[:, None] - 2 * np.einsum("qka,qja->qkj", places, places)
    gap[:, np.arange(k), np.arange(k)] = np.inf
    stands_next_to_other = np.take_along_axis(first, gap.argmin(axis=2), axis=1) != first
    chance = 2 * first.sum(axis=1) * (~first).sum(axis=1) / (k * (k - 1))
    branches: np.ndarray = between.max(axis=1) > SEPARATION * total
    branches &= total > LEAST_SPREAD * k * variance
    branches &= stands_next_to_other.mean(axis=1) > CONFUSION * chance
    return branches


def choose_chunk(statistics: DemoStatistics) -> int:
    """Choose how many actions are executed before planning again.

    People who branch or stay near a goal commit themselves, and a policy that replans too early changes its
    mind. Nothing else shows that long chunks are needed, and they cost success: at most a 16th of an episode.
    """
    chunk = _choose_commitment(statistics)
    if statistics.has_goal or statistics.has_branches:
        return chunk
    return min(chunk, round_down(statistics.median_length // 16))


def _choose_commitment(statistics: DemoStatistics) -> int:
    """Return the actions of 0.8 s, or 8 without a rate, at most a quarter of an episode."""
    rate = statistics.rate_hz
    chunk = 8 if rate is None else min(max(round(0.8 * rate), 4), 16)
    return min(chunk, round_down(statistics.median_length // 4))


def round_down(actions: int) -> int:
    """Return the largest power of two that is not above a number of actions; 1 for 0.

    A few more episodes then give the same chunk.
    """
    return 1 << max(actions.bit_length() - 1, 0)
