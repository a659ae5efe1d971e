"""Tests of distances between sets of videos and of feature networks."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.collisions import CollisionsConfig, make_collisions
from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.video.evaluate import VideosToScore, evaluate_video
from nsde_policy.eval.video.i3d import FeatureNetwork
from nsde_policy.eval.video.metrics import frechet_distance
from nsde_policy.video.base import to_unit


def white(n: int, d: int, seed: int) -> np.ndarray:
    """Draw a sample whose mean is exactly 0 and whose covariance is exactly the identity."""
    rows = np.random.default_rng(seed).normal(size=(n, d))
    rows -= rows.mean(0)
    return rows @ np.linalg.inv(np.linalg.cholesky(np.cov(rows, rowvar=False))).T


@pytest.fixture(scope="module")
def videos():
    return make_collisions(12, CollisionsConfig(frames=8, size=32), seed=1)


def test_frechet_distance_of_covariances_that_do_not_commute():
    mix = np.array([[1.0, 0.8], [0.0, 0.5]])
    first, second = white(30, 2, 2) @ mix, white(70, 2, 3) * [2.0, 0.3] + [1.0, -2.0]
    covariances = [np.cov(each, rowvar=False) for each in (first, second)]
    roots = np.sqrt(np.linalg.eigvals(covariances[0] @ covariances[1]).real)
    expected = 5 + np.trace(covariances[0] + covariances[1]) - 2 * roots.sum()
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(second, first) == pytest.approx(expected, rel=1e-9)


def test_distances_of_equal_sets_are_zero_even_with_fewer_videos_than_features():
    rows = 1e3 + np.random.default_rng(4).normal(size=(6, 40))
    assert frechet_distance(rows, rows[::-1]) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ComparisonError, match="at least two videos, got 1"):
        frechet_distance(rows[:1], rows)


class Flatten(torch.nn.Module):
    """The pixels themselves as features."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.scale * clips.flatten(1)


def test_a_network_gets_the_last_frames_resized(videos):
    frames = to_unit(videos)
    small = FeatureNetwork(Flatten(), Path("net"), size=8, fewest_frames=7)
    true = small.compute(frames[:, :7], batch_size=5)
    assert true.shape == (12, 3 * 7 * 8 * 8)
    assert -1 <= true.min() < true.max() <= 1
    long = FeatureNetwork(Flatten(), Path("net"), size=32, fewest_frames=3).compute(
        frames.repeat(1, 3, 1, 1, 1)
    )
    assert np.allclose(long, frames.repeat(1, 2, 1, 1, 1).transpose(1, 2).flatten(1))  # the last 16
    scores = evaluate_video({}, VideosToScore(videos), steps=3, network=small)
    row = scores.rows["repeat the last frame"]
    frozen = small.compute(torch.cat([frames[:, :4], frames[:, 3:4].expand(-1, 3, -1, -1, -1)], dim=1))
    assert row.fvd == pytest.approx(frechet_distance(frozen, true), rel=1e-9)
    assert scores.format_table().splitlines()[0].endswith("| FVD |")
    assert json.loads(scores.to_json())["rows"]["repeat the last frame"]["fvd"] == row.fvd
    with pytest.raises(ConfigError, match="needs clips of 7 frames, the videos have 6"):
        small.compute(frames[:, :6])
