"""Tests of the physics network, its features, and its weights in the package."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from nsde_policy.errors import ConfigError
from nsde_policy.eval.video.distances import frechet_distance
from nsde_policy.eval.video.features import FeatureNetwork, load_features
from nsde_policy.eval.video.physics import (
    FoundObjects,
    PhysicsNetwork,
    compute_physics_features,
    count_contacts,
)
from nsde_policy.video.collisions import (
    COLLISION_SEEDS,
    CollisionsConfig,
    CollisionVideos,
    Motion,
    Objects,
    draw_frames,
    make_collisions,
    simulate_collisions,
    simulate_motion,
)
from nsde_policy.video.pixels import to_unit


@pytest.fixture(scope="module")
def shipped() -> FeatureNetwork:
    return load_features(Path("physics"))


@pytest.fixture(scope="module")
def videos() -> CollisionVideos:
    return make_collisions(40, CollisionsConfig(frames=12), seed=COLLISION_SEEDS["test"])


@pytest.fixture(scope="module")
def true_features(shipped: FeatureNetwork, videos: CollisionVideos) -> np.ndarray:
    return shipped.compute(to_unit(videos.frames))


def add_noise(frames: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(frames.shape, generator=torch.Generator().manual_seed(0))
    return (frames + 0.05 * noise).clamp(-1, 1)


def without_contacts(objects: Objects, motion: Motion) -> torch.Tensor:
    """Return positions of the same objects if they pass through each other."""
    alone = objects._replace(present=torch.zeros_like(objects.present))
    config = CollisionsConfig(frames=motion.position.shape[1])
    return simulate_motion(alone, motion.position[:, 0], motion.velocity[:, 0], config).position


def describe_truth(objects: Objects, position: torch.Tensor) -> FoundObjects:
    """Return what a perfect network would find in frames with objects at positions (n, frames, 5, 2)."""
    n, frames = position.shape[:2]
    rows = torch.arange(n)[:, None]

    def by_colour(values: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(n, 8, *values.shape[2:])
        table[rows, objects.colour] = values
        return table

    places = by_colour(position.movedim(1, 2)).movedim(1, 2)
    fixed = (80.0 * objects.present - 40, objects.radius, 40.0 * functional.one_hot(objects.shape, 3))
    present, radius, shape = (
        by_colour(each)[:, None].expand(n, frames, *[-1] * (each.ndim - 1)) for each in fixed
    )
    return FoundObjects(torch.where(present == 0, -40.0, present), places, radius, shape)


@pytest.mark.parametrize(("size", "noisy"), [(64, False), (64, True), (32, False)])
def test_shipped_network_finds_colours_positions_and_sizes(shipped: FeatureNetwork, size: int, noisy: bool):
    videos = make_collisions(6, CollisionsConfig(frames=8, size=size), seed=COLLISION_SEEDS["test"])
    true = FoundObjects(
        *(part.flatten(0, 1) for part in describe_truth(videos.objects, videos.motion.position))
    )
    frames = functional.interpolate(
        to_unit(videos.frames.flatten(0, 1)), (64, 64), mode="bilinear", antialias=True
    )
    with torch.no_grad():
        found = shipped.module.find(add_noise(frames) if noisy else frames)
    is_there = true.present > 0
    error = (found.position - true.position).norm(dim=-1)[is_there]
    assert error.square().mean().sqrt() < 0.5
    assert ((found.present > 0) == is_there).float().mean() > 0.99
    assert (found.radius - true.radius)[is_there].abs().mean() < 0.6  # 0.8 if it were always the mean
    assert (found.shape.argmax(-1) == true.shape.argmax(-1))[is_there].float().mean() > 0.5  # chance: a third


def test_noise_counts_less_than_a_shift_and_motion_more(
    shipped: FeatureNetwork, videos: CollisionVideos, true_features: np.ndarray
):
    frames = to_unit(videos.frames)
    spoilt = {
        "noise": add_noise(frames),
        "two pixels": frames.roll(2, -1),
        "frozen": frames[:, 3:4].expand_as(frames),
        "another": frames[:, 3:].roll(1, 0),
    }
    distance = {
        name: frechet_distance(
            shipped.compute(torch.cat([frames[:, :3], each[:, -9:]], dim=1)), true_features
        )
        for name, each in spoilt.items()
    }
    assert distance["noise"] < 0.5 * distance["two pixels"]
    assert distance["two pixels"] < 0.5 * distance["frozen"]
    assert distance["frozen"] < distance["another"]


def test_contacts_are_features(shipped: FeatureNetwork, videos: CollisionVideos, true_features: np.ndarray):
    through = draw_frames(videos.objects, without_contacts(videos.objects, videos.motion), 64)
    touched = videos.motion.contact[:, 1:].sum((1, 2, 3))
    contacts = true_features.reshape(40, 8, 10)[:, :, -1]
    assert np.corrcoef(contacts.sum(1), touched.numpy())[0, 1] > 0.7
    passed = shipped.compute(to_unit(through)).reshape(40, 8, 10)[:, :, -1]
    noisy = shipped.compute(add_noise(to_unit(videos.frames))).reshape(40, 8, 10)[:, :, -1]
    assert frechet_distance(passed, contacts) > 5 * frechet_distance(noisy, contacts)


def test_contacts_of_true_positions_need_a_rebound():
    config = CollisionsConfig(frames=16)
    objects, motion = simulate_collisions(200, config, seed=COLLISION_SEEDS["tuning"])
    counted = count_contacts(describe_truth(objects, motion.position)).sum(1)
    touched = motion.contact[:, 1:].sum((1, 2, 3)).float()
    assert torch.corrcoef(torch.stack([counted, touched]))[0, 1] > 0.9
    assert 0.7 < counted.sum() / touched.sum() < 1.3
    passed = count_contacts(describe_truth(objects, without_contacts(objects, motion))).sum(1)
    assert passed.sum() < 0.3 * counted.sum()


def test_features_are_stored_by_colour_in_units(videos: CollisionVideos):
    features = compute_physics_features(describe_truth(videos.objects, videos.motion.position)).reshape(
        40, 8, 10
    )
    objects, position = videos.objects, videos.motion.position
    row, k = 2, 1
    x0, _, _, y1, u, _, *shape, _ = features[row, int(objects.colour[row, k])].tolist()
    assert x0 * 12 + 32 == pytest.approx(float(position[row, 0, k, 0]), abs=1e-3)
    assert y1 * 12 + 32 == pytest.approx(float(position[row, -1, k, 1]), abs=1e-3)
    assert u == pytest.approx(float(position[row, -1, k, 0] - position[row, -3, k, 0]) / 2, abs=1e-3)
    assert np.argmax(shape) == objects.shape[row, k]
    assert sum(shape) * 0.4 == pytest.approx(1)
    absent = ~torch.zeros(40, 8, dtype=torch.bool).scatter(1, objects.colour, objects.present)
    assert features[absent].abs().max() < 1e-6
    spread = features.std((0, 1))
    assert 0.3 < spread.min() < spread.max() < 1.5


def test_other_files_frames_and_clips_are_refused(tmp_path: Path, shipped: FeatureNetwork):
    other = tmp_path / "other.safetensors"
    network = PhysicsNetwork(generator=torch.Generator(), channels=8)
    save_file(network.state_dict(), other)
    with pytest.raises(ConfigError, match="is not a file of the physics network"):
        load_features(other)
    with pytest.raises(ConfigError, match="at least 32 × 32 pixels, got 16 × 16"):
        shipped.compute(torch.zeros(2, 5, 3, 16, 16))
    with pytest.raises(ConfigError, match="clips of 3 frames, the videos have 2"):
        shipped.compute(torch.zeros(2, 2, 3, 64, 64))
