"""Tests for RigidMotions in data/augmentation.py: demonstrations of Push-T moved to a common end."""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.data import Demonstrations
from nsde_policy.tasks import get_task

TRAINING = get_task("pusht").training
POINTS = ((0, 1), (2, 3))


def make_demos(seed: int) -> Demonstrations:
    """Make two demonstrations of five frames each: agent, block, angle and commands."""
    rng = np.random.default_rng(seed)
    obs, act = rng.uniform(0, 512, (10, 5)), rng.uniform(0, 512, (10, 2))
    obs[:, 4] = rng.uniform(0, 2 * math.pi, 10)
    return Demonstrations(np.float32(obs), np.float32(act), np.array([5, 10]), angles=(4,))


def find_ends(demos: Demonstrations) -> np.ndarray:
    return demos.obs[demos.episode_ends - 1, 2:].astype(np.float64)


def wrap(angles: np.ndarray) -> np.ndarray:
    return (angles + math.pi) % (2 * math.pi) - math.pi


def measure_distances(demos: Demonstrations, episode: slice) -> np.ndarray:
    """Return the distances between all positions of agent, block and commands in an episode."""
    found = np.concatenate([demos.obs[episode, point] for point in POINTS] + [demos.act[episode]])
    return np.array([np.hypot(*(a - b)) for a, b in itertools.combinations(found, 2)])


SEEDS, GOALS = st.integers(0, 999), st.tuples(st.floats(0, 512), st.floats(0, 512), st.floats(-9, 9))


@given(SEEDS, GOALS)
def test_each_demonstration_moves_as_a_whole_to_the_common_end(seed: int, pose: tuple[float, float, float]):
    demos, goal = make_demos(seed), np.array(pose)
    aligned = TRAINING.motions.align(demos, find_ends(demos), goal)
    difference = find_ends(aligned) - goal
    assert np.allclose(difference[:, :2], 0, atol=1e-3)
    assert np.allclose(wrap(difference[:, 2]), 0, atol=1e-5)
    assert (aligned.obs[:, 4] >= 0).all()
    assert aligned.obs.dtype == aligned.act.dtype == np.float32
    for episode in (slice(0, 5), slice(5, 10)):
        assert np.allclose(measure_distances(aligned, episode), measure_distances(demos, episode), atol=1e-2)
        turned = wrap(aligned.obs[episode, 4] - demos.obs[episode, 4])
        assert np.allclose(wrap(turned - turned[0]), 0, atol=1e-5)
        rays = [run.obs[episode, :2] - run.obs[episode, 2:4] for run in (demos, aligned)]
        before, after = (np.arctan2(*ray.T[::-1]) for ray in rays)
        assert np.allclose(wrap(after - before - turned[0]), 0, atol=1e-2)  # no mirror image


@given(SEEDS, GOALS)
def test_mirror_images_of_aligned_demonstrations_are_the_aligned_mirror_images(
    seed: int, pose: tuple[float, float, float]
):
    demos, mirror, goal = make_demos(seed), TRAINING.mirror, np.array(pose)
    one = mirror.flip(TRAINING.motions.align(demos, find_ends(demos), goal))
    image = mirror.flip(demos)
    mirrored_goal = mirror.flip_observations(np.array([[0.0, 0.0, *goal]]), (4,))[0, 2:]
    other = TRAINING.motions.align(image, find_ends(image), mirrored_goal)
    assert np.allclose(one.obs[:, :4], other.obs[:, :4], atol=1e-2)
    assert np.allclose(wrap(one.obs[:, 4] - other.obs[:, 4]), 0, atol=1e-5)
    assert np.allclose(one.act, other.act, atol=1e-2)
