"""Statistics of demonstrations that settings are chosen by: sizes, predictability and forks.

Predictability and forks come from nearest neighbours: frames of other episodes that look most like a frame
show how the demonstrators went on from there. If neighbours go on alike, the demonstrations are predictable;
if they split into two groups, they fork.
"""

from dataclasses import dataclass

import numpy as np

from nsde_policy.data.goal import find_goal
from nsde_policy.data.types import Demonstrations

NEIGHBOURS = 16
"""Episodes compared with a frame, each by its most similar frame."""
QUERIES, CANDIDATES = 1_000, 20_000
"""Most frames that are compared, and most frames they are compared with."""
LOOKAHEAD = 8
"""Frames are compared by their change over one part of this many of a median episode."""
GROUP_SHARE = 0.9
"""Share of the neighbours' variance that two groups explain at a fork; of a normal distribution, two halves
explain 0.64."""
GROUP_SIZE = 3
PREDICTABLE = 0.3
"""Unexplained share below which demonstrations are predictable. Measured: 0.01 to 0.24 for trained and
scripted demonstrators of six tasks, 0.33 to 0.40 for people in three."""
FEW_FORKS, SWITCHES, FORK_RANGE = 0.04, 0.08, 0.04
"""Largest fork share without forks, the same where similar frames predict what follows, and the range above
it within which forks are partial."""
LEAST_SPREAD = 0.05
"""Smallest variance of the neighbours at a fork, as a share of the variance over all frames."""


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
    unexplained_share: float
    """Share of the variance of future changes that the nearest neighbours do not predict: near 0 for a
    deterministic demonstrator, near 1 if similar frames say nothing about what follows."""
    fork_share: float
    """Share of the frames whose nearest neighbours go on in two separate ways."""
    goal_frames: float = 0.0
    """Frames that a median demonstration spends near the place where all end; 0 if they do not end alike."""
    action_step: float = 1.0
    """How much actions change from frame to frame, relative to their spread; the median over columns."""

    def describe(self) -> str:
        """Describe the demonstrations in one line."""
        rate = "at an unknown rate" if self.rate_hz is None else f"at {self.rate_hz:g} Hz"
        kind = (
            "are predictable" if self.is_predictable
            else "fork" if self.has_forks
            else "are neither predictable nor forked"
        )  # fmt: skip
        return (
            f"{self.frames} frames of {self.dim} dimensions {rate} that {kind} (similar frames leave "
            f"{self.unexplained_share:.0%} of what follows unexplained, {self.fork_share:.0%} are forks)"
        )

    @property
    def forking(self) -> float:
        """How much demonstrators go different ways from the same place, from 0 to 1.

        Where similar frames predict what follows, a few apparent forks are the switches of a script.
        """
        few = FEW_FORKS if self.unexplained_share >= PREDICTABLE else SWITCHES
        return float(np.clip((self.fork_share - few) / FORK_RANGE, 0, 1))

    @property
    def has_forks(self) -> bool:
        """Whether demonstrators go different ways from the same place."""
        return self.forking >= 0.5

    @property
    def is_predictable(self) -> bool:
        """Whether similar frames are followed by similar ones, as with a deterministic demonstrator."""
        return self.unexplained_share < PREDICTABLE and not self.has_forks


def measure_statistics(demos: Demonstrations) -> DemoStatistics:
    """Measure the statistics of demonstrations."""
    states, goal = _scale_states(demos), find_goal(demos)
    unexplained, forks = _compare_neighbours(demos, states, np.random.default_rng(0))
    return DemoStatistics(
        frames=len(demos.obs),
        dim=demos.obs.shape[1] + demos.act.shape[1],
        rate_hz=demos.rate_hz,
        median_length=int(np.median(demos.lengths)),
        unexplained_share=unexplained,
        fork_share=forks,
        goal_frames=0.0 if goal is None else goal.frames_nearby(demos),
        action_step=_measure_action_step(demos),
    )


def _measure_action_step(demos: Demonstrations) -> float:
    act = demos.act.astype(np.float64)
    spread = act.std(axis=0)
    inside = np.delete(np.diff(act, axis=0), demos.starts[1:] - 1, axis=0)
    moves = spread > 0
    return float(np.median(inside[:, moves].std(axis=0) / spread[moves])) if moves.any() else 1.0


def _scale_states(demos: Demonstrations) -> np.ndarray:
    """Return observations and the actions before them, each column with unit variance, (frames, columns).

    Angles become sine and cosine; columns that never change are left out.
    """
    previous = np.roll(demos.act, 1, axis=0)
    previous[demos.starts] = demos.act[demos.starts]
    columns = []
    for values, angles in ((demos.obs, demos.angles), (previous, demos.act_angles)):
        turned = values[:, list(angles)].astype(np.float64)
        straight = np.delete(values, list(angles), axis=1).astype(np.float64)
        columns += [straight, np.sin(turned), np.cos(turned)]
    states = np.concatenate(columns, axis=1)
    spread = states.std(axis=0)
    moves = spread > 1e-9 * np.abs(states).max(axis=0)
    scaled: np.ndarray = states[:, moves] / spread[moves]
    return scaled


def _compare_neighbours(
    demos: Demonstrations, states: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the unexplained share and the share of forks."""
    ahead = max(int(np.median(demos.lengths)) // LOOKAHEAD, 1)
    frames = np.arange(len(states))
    episode = np.searchsorted(demos.episode_ends, frames, side="right")
    usable = frames[frames + ahead < demos.episode_ends[episode]]
    k = min(NEIGHBOURS, len(demos) - 1)
    if k < 2 * GROUP_SIZE or not len(usable) or not states.shape[1]:
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
    error = states[queries + ahead] - states[queries] - futures.mean(axis=1)
    unexplained = (error**2).sum(axis=1).mean() / (1 + 1 / k) / variance
    return float(min(unexplained, 1.0)), float(_find_forks(futures, variance).mean())


def _find_neighbours(
    states: np.ndarray, episode: np.ndarray, queries: np.ndarray, candidates: np.ndarray, k: int
) -> np.ndarray:
    """Return the most similar frame of each of the k most similar other episodes, (queries, k).

    Empty if the candidates are from too few episodes.
    """
    known, first = np.unique(episode[candidates], return_index=True)
    if len(known) <= k:
        return np.empty((0, k), np.int64)
    ends = np.append(first[1:], len(candidates))
    distance = np.full((len(queries), len(known)), np.inf)
    nearest = np.empty((len(queries), len(known)), np.int64)
    asked = states[queries]
    for row, (number, start, end) in enumerate(zip(known, first, ends, strict=True)):
        block = candidates[start:end]
        # squared distance without |asked|², which is the same for all
        gap = (states[block] ** 2).sum(axis=1) - 2 * asked @ states[block].T
        best = gap.argmin(axis=1)
        other = episode[queries] != number
        distance[other, row] = gap[np.arange(len(queries)), best][other]
        nearest[:, row] = block[best]
    chosen = np.argpartition(distance, k - 1, axis=1)[:, :k]
    return np.take_along_axis(nearest, chosen, axis=1)


def _find_forks(futures: np.ndarray, variance: float) -> np.ndarray:
    """Return whether futures (queries, k, columns) split into two groups along their widest direction."""
    k = futures.shape[1]
    centred = futures - futures.mean(axis=1, keepdims=True)
    widths, directions = np.linalg.eigh(np.einsum("qka,qja->qkj", centred, centred))
    position = np.sort(directions[:, :, -1] * np.sqrt(np.maximum(widths[:, -1:], 0)), axis=1)
    explained = np.zeros(len(futures))
    for size in range(GROUP_SIZE, k - GROUP_SIZE + 1):
        means = position[:, :size].mean(axis=1), position[:, size:].mean(axis=1)
        explained = np.maximum(explained, size * means[0] ** 2 + (k - size) * means[1] ** 2)
    forked: np.ndarray = explained > GROUP_SHARE * widths[:, -1]
    forked &= widths[:, -1] > LEAST_SPREAD * k * variance
    return forked


def choose_chunk(statistics: DemoStatistics) -> int:
    """Choose how many actions are executed before planning again.

    A deterministic demonstrator reacts to every observation: 0.05 s. People commit themselves, and a policy
    that replans too early changes its mind: 0.8 s. Without a rate, 1 and 8 actions.
    """
    rate, longest = statistics.rate_hz, max(statistics.median_length // 4, 1)
    if statistics.unexplained_share < PREDICTABLE:
        chunk = 1 if rate is None else min(max(round(0.05 * rate), 1), 8)
    else:
        chunk = 8 if rate is None else min(max(round(0.8 * rate), 4), 16)
    return min(chunk, longest)
