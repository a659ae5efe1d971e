"""Tests of contacts between two frames: the truth shows all of them, mixed and straight motion do not."""

import pytest
import torch

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.video.contacts import ContactScores, cross_fade, score_contacts
from nsde_policy.video.collisions import (
    CollisionsConfig,
    CollisionVideos,
    Motion,
    Objects,
    draw_frames,
    make_collisions,
)
from nsde_policy.video.spaces import to_unit

SUBSTEPS = 5


@pytest.fixture(scope="module")
def videos():
    """Fast objects, so that most contacts fall between two frames; the last frame is a coarse one."""
    config = CollisionsConfig(frames=7, substeps=SUBSTEPS, min_speed=3.5, max_speed=4.5, resting=0)
    made = make_collisions(32, config, seed=3)
    length = 6 * SUBSTEPS + 1
    return CollisionVideos(
        made.frames[:, :length], made.objects, Motion(*(part[:, :length] for part in made.motion))
    )


@pytest.fixture(scope="module")
def frames(videos):
    return to_unit(videos.frames)


def cut_windows(videos: CollisionVideos, frames: torch.Tensor) -> CollisionVideos:
    """Cut out the frames from the coarse one before to the one after each skipped contact."""
    contacts = score_contacts(frames, frames, videos).contacts
    steps = contacts.start[:, None] + torch.arange(SUBSTEPS + 1)
    return CollisionVideos(
        videos.frames[contacts.video[:, None], steps],
        Objects(*(part[contacts.video] for part in videos.objects)),
        Motion(*(part[contacts.video[:, None], steps] for part in videos.motion)),
    )


def score_straight(windows: CollisionVideos, velocity: torch.Tensor) -> ContactScores:
    """Score objects that leave the first frame of each window with a constant velocity, (n, 5, 2)."""
    ahead = torch.arange(SUBSTEPS + 1)[:, None, None] / SUBSTEPS
    position = windows.motion.position[:, :1] + ahead * velocity[:, None]
    drawn = to_unit(draw_frames(windows.objects, position, windows.frames.shape[2]))
    return score_contacts(drawn, to_unit(windows.frames), windows)


def test_the_truth_shows_every_contact_and_its_rebound(videos, frames):
    scores = score_contacts(frames, frames, videos)
    assert len(scores.reached) >= 10
    assert scores.estimate("reached").value == scores.estimate("rebounded").value == 1
    pair = scores.contacts
    touches = [
        videos.motion.contact[pair.video, pair.start + k, pair.first, pair.second] for k in range(1, 6)
    ]
    assert torch.stack(touches).any(0).all()
    generator = torch.Generator().manual_seed(0)
    noisy = (frames + 0.05 * torch.randn(frames.shape, generator=generator)).clamp(-1, 1)
    assert score_contacts(noisy, frames, videos).estimate("rebounded").value >= 0.9


def test_a_cross_fade_and_straight_motion_between_true_frames_reach_almost_no_contact(videos, frames):
    windows = cut_windows(videos, frames)
    mean_velocity = windows.motion.position[:, -1] - windows.motion.position[:, 0]
    mixed = score_contacts(cross_fade(frames[:, ::SUBSTEPS]), frames, videos)
    for scores in (mixed, score_straight(windows, mean_velocity)):
        assert scores.estimate("reached").value <= 0.1
        assert scores.to_dict()["rebounded"]["value"] <= 0.1


def test_objects_that_pass_through_each_other_reach_the_contact_but_do_not_rebound(videos, frames):
    windows = cut_windows(videos, frames)
    scores = score_straight(windows, windows.motion.velocity[:, 0])
    assert scores.estimate("reached").value > 0.8
    assert scores.estimate("rebounded").value <= 0.1


def test_lost_objects_reach_nothing_and_wrong_shapes_are_rejected(videos, frames):
    black = score_contacts(torch.full_like(frames, -1), frames, videos)
    assert not black.reached.any()
    assert not black.rebounded.any()
    with pytest.raises(ComparisonError, match="need equal shapes"):
        score_contacts(frames[:, 1:], frames, videos)
    still = score_contacts(
        frames[:, :1].expand(-1, 6, -1, -1, -1), frames[:, :1].expand(-1, 6, -1, -1, -1), videos
    )
    with pytest.raises(ComparisonError, match="more videos"):
        still.estimate("reached")


def test_a_cross_fade_keeps_the_coarse_frames(frames):
    mixed = cross_fade(frames[:2, ::SUBSTEPS])
    assert mixed.shape == frames[:2].shape
    assert mixed[:, ::SUBSTEPS].equal(frames[:2, ::SUBSTEPS])
    assert torch.allclose(mixed[:, 1], 0.8 * frames[:2, 0] + 0.2 * frames[:2, 5], atol=1e-6)
