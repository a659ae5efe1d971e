"""Tests of video prediction in keypoints: layers that follow objects, and motion between frames."""

import math

import pytest
import torch
from torch import Tensor, nn

from nsde_policy.config import TrainConfig
from nsde_policy.errors import ConfigError
from nsde_policy.video.keypoints.config import LayerConfig, MotionConfig
from nsde_policy.video.keypoints.layers import LayerAutoencoder, make_rings, measure_radius
from nsde_policy.video.keypoints.model import KeypointVideo, track, train_layers
from nsde_policy.video.keypoints.motion import (
    MOST_PUSH,
    Bodies,
    KeypointMotion,
    TrackWindows,
    find_encounters,
    join_motion,
    kink,
)
from nsde_policy.video.spaces import to_unit
from tests.helpers.rng import make_rng

SIZE = 16


def make_squares(n: int, length: int) -> tuple[Tensor, Tensor]:
    """Return videos of a red and a blue square at random places, and these places, (n, length, 2, 2)."""
    frames = torch.full((n, length, SIZE, SIZE, 3), 20, dtype=torch.uint8)
    corners = torch.randint(0, SIZE - 3, (n, length, 2, 2), generator=make_rng(0))
    corners[:, :, 1, 1] = (corners[:, :, 0, 1] + 8) % (SIZE - 3)  # not over each other
    colours = torch.tensor([[250, 30, 30], [30, 30, 250]], dtype=torch.uint8)
    for video in range(n):
        for k in range(length):
            for (x, y), colour in zip(corners[video, k].tolist(), colours, strict=True):
                frames[video, k, y : y + 3, x : x + 3] = colour
    return frames, (corners + 1.5) * (2 / SIZE) - 1


def test_layers_learn_to_follow_objects_from_motion_alone():
    frames, places = make_squares(64, 8)
    config = LayerConfig(
        layers=3, width=8, crop=12, train=TrainConfig(steps=60, batch_size=16, learning_rate=2e-2, ema=0.9)
    )
    layers, record = train_layers(frames, config, seed=0)
    assert record.losses["redraw"][-1] < 0.1 * record.losses["redraw"][0]
    cut = layers.cut(to_unit(frames[:, 0]))
    error = torch.cdist(places[:, 0], cut.keypoints).amin(2) * (SIZE / 2)
    assert error.max() < 0.5  # pixels
    found = track(layers, frames, MotionConfig(encounters=0.0))
    assert found.keypoints.shape == (64, 8, 2, 2)
    assert found.present.all()
    assert found.rows.shape == (64 * 4, 2)


def test_layers_are_drawn_where_they_are_moved():
    layers = LayerAutoencoder(LayerConfig(layers=2), size=SIZE, generator=make_rng(0))
    content = torch.zeros(1, 2, 3, SIZE, SIZE)
    content[0, 0, 0, 4:7, 4:7] = 1.0
    content[0, 1, 1, 9:12, 9:12] = 0.5
    moved = torch.tensor([[[3.0, 0.0], [0.5, -1.0]]]) * (2 / SIZE)
    drawn = layers.draw(content, moved)
    assert torch.allclose(drawn[0, 0], content[0, 0, 0].roll(3, 1), atol=1e-5)
    half = 0.5 * (content[0, 1, 1] + content[0, 1, 1].roll(1, 1))
    assert torch.allclose(drawn[0, 1], half.roll(-1, 0), atol=1e-5)


def test_rings_give_the_radius():
    layers = LayerAutoencoder(LayerConfig(layers=1), size=64, generator=make_rng(0))
    nn.init.zeros_(layers.assign.weight)
    layers.assign.bias.data = torch.tensor([40.0, -40.0])
    axis = torch.arange(64) + 0.5
    away = ((axis - 20.3).square()[None] + (axis - 41.6).square()[:, None]).sqrt()
    frame = (6.5 - away).clamp(0, 1).expand(1, 3, 64, 64)
    cut = layers.cut(frame)
    assert torch.allclose(cut.keypoints[0, 0] * 32 + 32, torch.tensor([20.3, 41.6]), atol=0.02)
    assert abs(float(measure_radius(cut.rings, make_rings(20).sum(0))[0, 0]) - 6.0) < 0.05
    assert torch.allclose(cut.rings[0, 0, :5], torch.ones(5), atol=0.02)
    assert torch.allclose(cut.rings[0, 0, 8:], torch.zeros(1), atol=0.02)
    assert cut.present[0, 0] == 1
    assert layers.cut(torch.zeros(1, 3, 64, 64)).present[0, 0] == 0


def build_motion(*, substeps: int = 5, unit: float = 0.05) -> KeypointMotion:
    """Return a model in which discs of equal mass and radius 0.2 bounce off each other and off the edges."""
    config = MotionConfig(substeps=substeps, code=2, width=8)
    motion = KeypointMotion(config, crop=3, unit=unit, generator=make_rng(0))
    with torch.no_grad():
        for encounter, push in ((motion.field.pair, 1.0), (motion.field.edge, 2.0)):
            encounter.network.output.bias.copy_(torch.tensor([math.log(push / (MOST_PUSH - push)), 0.0]))
            encounter.log_sharpness.fill_(6.0)
    return motion


def make_bodies(n: int, count: int, unit: float = 0.05) -> Bodies:
    return Bodies(torch.zeros(n, count, 2), torch.full((n, count), 0.2 / unit), torch.ones(n, count))


@pytest.mark.parametrize("contact", [0.13, 0.5, 0.86])
def test_solver_steps_show_a_bounce_where_it_happens(contact: float):
    motion = build_motion()
    start = torch.tensor([[[-0.2 - 0.3 * contact, 0.0, 0.3, 0.1], [0.2 + 0.1 * contact, 0.0, -0.1, 0.1]]])
    path = motion.solve(start, make_bodies(1, 2), 1)[:, 0]
    time = torch.arange(6)[:, None] / 5
    before = start[0, :, 0] + start[0, :, 2] * time
    after = torch.tensor([-0.2, 0.2]) + torch.tensor([-0.1, 0.3]) * (time - contact)
    expected = torch.where(time <= contact, before, after)
    assert torch.allclose(path[..., 0], expected, atol=2e-3)
    assert torch.allclose(path[..., 1], (0.1 * time).expand(6, 2), atol=2e-3)


def test_edges_reflect_and_absent_keypoints_do_not_push():
    motion = build_motion()
    start = torch.tensor([[[0.7, 0.0, 0.3, 0.0], [0.7, 0.05, 0.0, 0.0]]])
    bodies = make_bodies(1, 2)._replace(present=torch.tensor([[1.0, 0.0]]))
    path = motion.solve(start, bodies, 1)[:, 0, 0].detach()
    assert path[-1, 0] == pytest.approx(0.6, abs=2e-3)
    assert path[-1, 2] == pytest.approx(-0.3, abs=2e-3)
    assert path[-1, 3] == 0


def test_velocity_is_carried_through_a_contact_in_the_context():
    motion = build_motion()
    speed = torch.tensor([0.3, -0.1])
    times = torch.arange(4.0)[:, None] - 2.43  # they touch between the last two frames
    seen = torch.tensor([-0.2, 0.2]) + torch.where(times < 0, speed, speed.flip(0)) * times
    keypoints = torch.stack([seen, torch.zeros_like(seen)], dim=-1)[None]
    state = motion.estimate(keypoints, make_bodies(1, 2))
    assert torch.allclose(state[0, :, 0], seen[-1])
    assert torch.allclose(state[0, :, 2], speed.flip(0), atol=5e-3)
    difference = join_motion(keypoints[:, -2], keypoints[:, -1])[0, :, 2]
    assert (difference - speed.flip(0)).abs().max() > 0.1


def test_kinked_lines_restore_a_bounce_between_two_frames():
    times, contact = torch.arange(6) / 5, 0.37
    place = torch.where(times < contact, times, 2 * contact - times)
    states = torch.tensor([[0.0, 0.0, 1.0, 0.2], [2 * contact - 1, 0.2, -1.0, 0.2]])[:, None, None]
    filled = kink(states, 5)[:, 0, 0]
    assert torch.allclose(filled[:, 0], place, atol=1e-5)
    assert torch.allclose(filled[:, 1], 0.2 * times, atol=1e-5)
    straight = torch.tensor([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]])[:, None, None]
    assert torch.allclose(kink(straight, 5)[:, 0, 0, 0], times, atol=1e-5)


def make_bounces(n: int, length: int) -> Tensor:
    """Return pairs of keypoints that meet on a line at different times, (n, length, 2, 2)."""
    contact = 2 + (length - 3) * torch.rand(n, generator=make_rng(1))
    times = torch.arange(length) - contact[:, None]
    speed = torch.tensor([0.06, -0.02])
    moved = torch.where(times[..., None] < 0, speed, speed.flip(0)) * times[..., None]
    place = torch.tensor([-0.2, 0.2]) + moved
    return torch.stack([place, torch.zeros_like(place)], dim=-1)


def test_windows_with_encounters_are_found():
    keypoints = make_bounces(8, 12)
    keypoints[:4] = keypoints[:4, :1] + 0.01 * torch.arange(12.0)[None, :, None, None]
    every, meeting = find_encounters(keypoints, torch.ones(8, 2), 6)
    assert len(every) == 8 * 7
    assert 4 <= len(meeting) < 4 * 7
    assert meeting[:, 0].min() >= 4


def test_loss_at_whole_frames_is_smallest_for_sharp_contacts_at_the_right_distance():
    keypoints, present = make_bounces(256, 5), torch.ones(256, 2)
    rows = torch.stack([torch.arange(256), torch.zeros(256, dtype=torch.long)], dim=1)
    batch = TrackWindows(keypoints, present, torch.zeros(256, 2, 3), rows, 5)[torch.arange(256)]

    def measure(*, reach: float = 0.2, push: float = 1.0, sharpness: float = 6.0) -> Tensor:
        motion = build_motion()
        with torch.no_grad():
            motion.read_reach.bias.fill_(reach / 0.05)
            motion.field.pair.network.output.bias[0] = math.log(push / (MOST_PUSH - push))
            motion.field.pair.log_sharpness.fill_(sharpness)
        loss = motion.loss(batch, make_rng(0)).parts["position"]
        loss.backward()
        assert all(parameter.grad is not None for parameter in motion.field.pair.parameters())
        return loss.detach()

    best = measure()
    others = [{"reach": 0.19}, {"reach": 0.21}, {"push": 0.1}, {"push": 0.9}, {"sharpness": 0.0}]
    assert all(measure(**other) > 1.1 * best for other in others)


def test_frames_between_frames_are_generated():
    layers = LayerAutoencoder(LayerConfig(layers=3, crop=3), size=SIZE, generator=make_rng(0))
    video = KeypointVideo(layers, build_motion())
    frames, _ = make_squares(2, 4)
    for between in ("solver", "kink", "straight"):
        found = video.generate(frames, steps=2, substeps=5, between=between)
        assert found.shape == (2, 10, 3, SIZE, SIZE)
        assert found.abs().max() <= 1
    with pytest.raises(ConfigError, match="takes 5 steps per frame"):
        video.generate(frames, steps=2, substeps=3)


def test_paths_stay_finite_for_any_weights():
    motion = build_motion()
    with torch.no_grad():
        for parameter in motion.field.parameters():
            parameter.copy_(30 * torch.randn(parameter.shape, generator=make_rng(0)))
    start = torch.randn(64, 5, 4, generator=make_rng(1))
    bodies = make_bodies(64, 5)._replace(codes=10 * torch.randn(64, 5, 2, generator=make_rng(2)))
    path = motion.solve(start, bodies, 4)
    assert path.isfinite().all()
    path.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in motion.field.parameters())
