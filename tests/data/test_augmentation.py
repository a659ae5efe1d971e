"""Tests for data/augmentation.py and the mirror symmetry of Push-T."""

import math

import numpy as np
import pytest

from nsde_policy.data import Demonstrations, Mirror, add_mirror_images, load_demonstrations
from nsde_policy.envs.pusht import geometry
from nsde_policy.errors import ConfigError
from nsde_policy.tasks import get_task
from tests.helpers.replay import replay_episodes

MIRROR = get_task("pusht").training.mirror


def test_mirroring_keeps_coverage():
    rng = np.random.default_rng(0)
    obs = np.column_stack([rng.uniform(150, 350, (200, 4)), rng.uniform(0, 2 * math.pi, 200)])
    demos = Demonstrations(np.float32(obs), np.float32(obs[:, :2]), np.array([200]), angles=(4,))
    both = add_mirror_images(demos, MIRROR)
    for state, image in zip(both[0].obs.astype(float), both[1].obs.astype(float), strict=True):
        assert geometry.coverage(state[2:]) == pytest.approx(geometry.coverage(image[2:]), abs=1e-5)


def test_mirror_images_replay_in_the_environment(human_demos):
    """Replay mirror images of human demonstrations, with their contacts."""
    some = load_demonstrations(human_demos, angles=(4,)).take(60)
    images = add_mirror_images(some, MIRROR).select(range(len(some), 2 * len(some)))
    errors = [error for error, _ in replay_episodes(images, get_task("pusht"))]
    assert np.median(errors) < 1e-3
    assert np.mean(np.array(errors) < 0.1) > 0.95  # some episodes touch the walls, which are half a pixel off


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (((0, -1.0, 1.0), (0, 1.0, 0.0)), "is not its own inverse"),
        (((0, -1.0, 0.0), (5, 1.0, 0.0)), "beyond its 2"),
    ],
)
def test_invalid_mirror_is_rejected(columns, message):
    with pytest.raises(ConfigError, match=message):
        Mirror(obs=columns, act=((0, 1.0, 0.0),))


def test_mirror_of_other_sizes_is_rejected():
    other = Demonstrations(obs=np.zeros((3, 4), "f4"), act=np.zeros((3, 2), "f4"), episode_ends=np.array([3]))
    with pytest.raises(ConfigError, match="5-D observations and 2-D actions; memory holds 4-D"):
        add_mirror_images(other, MIRROR)
