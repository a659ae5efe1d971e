"""Recorded frames to score: which episodes a run has not seen, and which of their frames are scored."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from nsde_policy.core.batches import Transitions
from nsde_policy.core.spec import STATE_KEY
from nsde_policy.data import Demonstrations, LazyFrames
from nsde_policy.data.readers import open_source
from nsde_policy.data.roles import check_robot
from nsde_policy.data.split import advise_validation
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig
from nsde_policy.run_directory import DemoRecord, RunRecord
from nsde_policy.training.dataset import build_transitions
from nsde_policy.training.demos import load_training_demos, open_training_images
from nsde_policy.training.frames import split_rows

MAX_FRAMES = 1000
"""Scored frames, unless a stride is given: more take minutes on a CPU and change little."""
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Its multiples, modulo 1, are spread evenly over [0, 1)."""
RATE_TOLERANCE = 0.01
"""Largest relative difference between the rates of a run and a store."""


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
    cameras: tuple[LazyFrames, ...] = ()
    """Frames of each camera of the policy, for all episodes of the store."""
    first_frames: tuple[int, ...] = ()
    """Position of the first frame of each scored episode in them."""
    training: "ScoredEpisodes | None" = None
    """Episodes that the run was trained on, to compare with; None if they are not in the store."""

    def select(self, episodes: Sequence[int]) -> "ScoredEpisodes":
        """Return some of the episodes, by their position among these."""
        return replace(
            self,
            demos=self.demos.select(episodes),
            episodes=tuple(self.episodes[i] for i in episodes),
            first_frames=tuple(self.first_frames[i] for i in episodes),
        )


def select_episodes(policy: Policy, path: Path) -> ScoredEpisodes:
    """Load the episodes of a store that a run has not seen in training; raise if they do not fit the run.

    Episodes are recognised by their numbers, whatever store they are in. Those that the run was trained on
    are left out; a store that holds no others is scored whole, with a note.
    """
    record = policy.record
    settings = record.config.demos
    demos = _load_recorded(settings, path)
    spec = record.spec
    check_robot(path, (demos.obs.shape[1], demos.act.shape[1]), (spec.plain_dim, spec.act_dim))
    trained = _find_trained(record.demos, demos)
    if not trained:
        rate_hz = settings.rate_hz or (0.0 if settings.resample_hz else policy.calibration.rate_hz)
        with open_source(path) as source:
            recorded_hz = source.rate_hz
        if rate_hz and recorded_hz and abs(recorded_hz / rate_hz - 1) > RATE_TOLERANCE:
            raise ConfigError(
                f"{path} was recorded at {recorded_hz:g} Hz, the run was trained at {rate_hz:g} Hz: use "
                f"`nsde-policy data convert --resample {rate_hz:g}`, or --rate if the record is wrong"
            )
    cameras = open_recorded_images(policy, settings, path, len(demos.obs)) if record.cameras else ()
    everything = tuple(range(len(demos)))
    unseen = tuple(i for i in everything if i not in trained)
    note = _describe_selection(path, len(demos), len(unseen))
    obs_angles = tuple(column for column in spec.circular if column < spec.obs_dim)
    act_angles = tuple(column - spec.obs_dim for column in spec.circular if column >= spec.obs_dim)
    demos = replace(demos, angles=obs_angles, act_angles=act_angles)
    first = tuple(demos.starts.tolist())
    scored = ScoredEpisodes(demos, everything, not unseen, note, cameras, first)
    if not (unseen and trained):
        return scored
    return replace(scored.select(unseen), training=scored.select(sorted(trained)))


def _find_trained(record: DemoRecord, demos: Demonstrations) -> set[int]:
    """Return which episodes a run was trained on; all of them if it does not record its episodes."""
    fingerprints, held_out = record.episode_fingerprints, set(record.held_out)
    trained = {fingerprint for i, fingerprint in enumerate(fingerprints) if i not in held_out}
    is_complete = len(fingerprints) == record.episodes
    return {
        i
        for i, fingerprint in enumerate(demos.episode_fingerprints)
        if fingerprint in trained or not is_complete
    }


def _describe_selection(path: Path, episodes: int, unseen: int) -> str:
    """Describe in one sentence which episodes of a store are scored."""
    if not unseen:
        return (
            f"all {episodes} episodes of {path}, which the run was TRAINED on; for a verdict on unseen ones, "
            + advise_validation(episodes)
        )
    if unseen == episodes:
        return f"all {episodes} episodes of {path}"
    return (
        f"the {unseen} of {episodes} episodes of {path} that the run was not trained on; "
        f"{episodes - unseen} left out"
    )


def _load_recorded(settings: DemoConfig, path: Path) -> Demonstrations:
    """Load all episodes of a store with the settings of a run."""
    try:
        return load_training_demos(replace(settings, episodes=0), path)
    except DemoError as error:
        if not error.advice:
            raise
        raise DemoError(
            f"{error.problem}; the run was trained on the observations {', '.join(settings.obs_keys)} and "
            f"the actions {settings.act_key}: give --demos a store with these arrays"
        ) from None


@dataclass(frozen=True)
class FrameBatch:
    """Some frames with their histories, successors and the actions that were recorded from them on."""

    pairs: Transitions
    """States with real histories and their successors, one row per frame."""
    actions: npt.NDArray[np.float64]
    """Recorded actions, (frames, horizon, act_dim); the last one is repeated past the end of an episode."""
    recorded: npt.NDArray[np.bool_]
    """Which of them were recorded, (frames, horizon)."""
    episode: npt.NDArray[np.int64]
    """Number of each frame's episode, (frames,)."""


def choose_stride(demos: Demonstrations) -> int:
    """Return the distance between scored frames that leaves about `MAX_FRAMES` of them."""
    return max(1, -(-len(demos.obs) // MAX_FRAMES))


def choose_frames(demos: Demonstrations, stride: int) -> npt.NDArray[np.bool_]:
    """Return which frames are scored, (frames,); raise if none is left.

    Episodes start counting at different frames: if all counted from their first frame, which is often the
    hardest one, it would have too much weight.
    """
    episode = np.repeat(np.arange(len(demos)), demos.lengths)
    time = np.arange(len(episode)) - demos.starts[episode]
    phase = ((np.arange(len(demos)) + 0.5) * GOLDEN_RATIO % 1 * stride).astype(np.int64)  # evenly spread
    scored: npt.NDArray[np.bool_] = (time - phase[episode]) % stride == 0
    if not scored.any():
        raise ConfigError(f"--stride {stride} leaves no frame of {len(time)}; choose a smaller one")
    return scored


def iterate_frames(
    demos: Demonstrations, record: RunRecord, scored: npt.NDArray[np.bool_], *, horizon: int, batch: int
) -> Iterator[FrameBatch]:
    """Iterate over the scored frames in batches, with histories that do not span two episodes."""
    pairs = build_transitions(
        demos, record.config.demos, history=record.config.model.history, final_action_weight=1.0
    )
    episode = np.repeat(np.arange(len(demos)), demos.lengths)
    frames = np.flatnonzero(scored)
    for rows in np.split(frames, range(batch, len(frames), batch)):
        ahead, ends = rows[:, None] + np.arange(horizon), demos.episode_ends[episode[rows]][:, None]
        recorded = ahead < ends
        ahead = np.minimum(ahead, ends - 1)
        actions = demos.act[ahead].astype(np.float64)
        yield FrameBatch(pairs[torch.from_numpy(rows)], actions, recorded, episode[rows])


def thin_out(scored: ScoredEpisodes, frames: int) -> ScoredEpisodes:
    """Return every n-th episode, so that they have at most about so many frames."""
    return scored.select(range(0, len(scored.episodes), -(-len(scored.demos.obs) // frames)))


def load_features(scored: ScoredEpisodes, policy: Policy) -> Demonstrations:
    """Return the episodes as the policy sees them, with the features of camera frames if there are any."""
    if not scored.cameras:
        return scored.demos
    return add_features(scored.demos, scored.cameras, scored.first_frames, policy)


def open_recorded_images(
    policy: Policy, settings: DemoConfig, path: Path, frames: int
) -> tuple[LazyFrames, ...]:
    """Open the cameras of a policy in a store; raise if one is missing or has frames of another size."""
    images = open_training_images(settings, path)
    for (name, recorded), camera in zip(images.items(), policy.spec.cameras, strict=True):
        if recorded.shape[1:] != camera.shape or len(recorded) < frames:
            raise DemoError(
                f"data/{name} of {path} has shape {recorded.shape}, expected {(frames, *camera.shape)} as in "
                "training: give --demos a store of the same cameras"
            )
    return tuple(images.values())


def add_features(
    demos: Demonstrations, cameras: Sequence[LazyFrames], first_frames: Sequence[int], policy: Policy
) -> Demonstrations:
    """Return the demonstrations with the features of their frames, which are decoded in blocks.

    `first_frames` is where each episode begins in the frames of the cameras.
    """
    features = np.zeros((len(demos.obs), policy.spec.image_features), np.float32)
    spans = list(zip(demos.starts, demos.episode_ends, first_frames, strict=True))
    for start, end, first in tqdm(spans, "encoding", unit="episode", leave=False, disable=None):
        for rows in split_rows(np.arange(start, end)):
            at = int(first + rows[0] - start)
            parts = {
                camera.name: frames[at : at + len(rows)]
                for camera, frames in zip(policy.spec.cameras, cameras, strict=True)
            }
            encoded = policy.encode({STATE_KEY: demos.obs[rows], **parts})
            features[rows] = encoded[:, policy.spec.plain_dim :]
    return replace(demos, obs=np.concatenate([demos.obs, features], axis=1))
