"""Tests of the keypoint encoder: its parts one by one, then what it learns without labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nsde_policy.config import TrainConfig
from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.encoder_model import CameraBatch, mirror_frames
from nsde_policy.encoders.keypoints.config import FORESEEN, SMALL_ENCODER, KeypointConfig
from nsde_policy.encoders.keypoints.model import KeypointModel
from nsde_policy.encoders.keypoints.networks import draw_bumps, locate_peaks, make_axis, scale_brightness
from nsde_policy.encoders.occlusion import shift_frames
from nsde_policy.errors import ConfigError
from nsde_policy.training.fit import BatchSource, fit
from tests.helpers.rng import make_rng

SIZE = 32
SMALL = KeypointConfig(
    train=TrainConfig(steps=60, batch_size=8, learning_rate=3e-3, ema=0.9),
    size=SIZE,
    keypoints=2,
    width=8,
    known_points=0,
    bump=0.2,
    shift=3,
    anchors=0,
)


CAMERA = CameraSpec("observation.images.top", SIZE, SIZE)


def make_scenes(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions of a square, (n, 2) in [0, 1], and frames that show it, (n, SIZE, SIZE, 3)."""
    positions = np.random.default_rng(seed).uniform(size=(n, 2))
    frames = np.full((n, SIZE, SIZE, 3), 240, np.uint8)
    for frame, (x, y) in zip(frames, positions, strict=True):
        row, column = int(2 + 20 * y), int(2 + 20 * x)
        frame[row : row + 8, column : column + 8] = 20
    return torch.from_numpy(positions).float(), torch.from_numpy(frames)


@pytest.mark.parametrize("gain", [0.5, 0.8, 1.0])
def test_brightness_of_the_background_is_restored(gain: float):
    _, frames = make_scenes(6, seed=0)
    background, dark = frames[0], (frames * gain).round().to(torch.uint8)
    restored = scale_brightness(shift_frames(dark, torch.tensor([[3, -2]]).expand(6, 2)), background)
    moved = shift_frames(frames, torch.tensor([[3, -2]]).expand(6, 2))
    assert (restored.int() - moved.int()).abs().max() <= (1 if gain < 1 else 0)


def test_levelled_keypoints_do_not_depend_on_the_brightness():
    config = replace(SMALL, level_brightness=True)
    model = KeypointModel(config, [CAMERA], plain_dim=2, generator=make_rng(0))
    values, frames = make_scenes(4, seed=2)
    model.set_scene(torch.zeros(2), torch.ones(2), [frames.float().median(0).values.to(torch.uint8)])
    dark = (frames * 0.7).round().to(torch.uint8)
    with torch.no_grad():
        assert torch.allclose(model(values, frames), model(values, dark), atol=1e-4)
        plain = KeypointModel(SMALL, [CAMERA], plain_dim=2, generator=make_rng(0))
        assert not torch.allclose(plain(values, frames), plain(values, dark), atol=1e-3)


class Scenes(BatchSource[CameraBatch]):
    """Batches of scenes; measured values are the position of the square, or constant."""

    def __init__(self, batch_size: int, *, is_measured: bool) -> None:
        positions, self._frames = make_scenes(400, seed=0)
        self._values = positions if is_measured else torch.full_like(positions, 0.5)
        self._batch_size = batch_size

    def sample(self, generator: torch.Generator) -> CameraBatch:
        rows = torch.randint(len(self._values), (self._batch_size,), generator=generator)
        return CameraBatch(self._values[rows], self._values[rows], (self._frames[rows],))


def train_model(config: KeypointConfig, *, is_measured: bool) -> KeypointModel:
    model = KeypointModel(config, [CAMERA], plain_dim=2, generator=make_rng(0))
    _, frames = make_scenes(200, seed=1)
    background = frames.float().median(0).values.to(torch.uint8)
    model.set_scene(torch.zeros(2), torch.ones(2), [background])
    fit(model, Scenes(config.train.batch_size, is_measured=is_measured), config.train, seed=0)
    return model


@pytest.mark.slow
@torch.no_grad()
def test_keypoints_of_unseen_frames_tell_where_the_square_is():
    with torch.enable_grad():
        model = train_model(SMALL, is_measured=False)
    constant = torch.full((300, 2), 0.5)
    (known, frames), (unknown, unseen) = make_scenes(300, 2), make_scenes(300, 3)
    features, features_unseen = (torch.cat([model(constant, f), constant], 1) for f in (frames, unseen))
    found = features_unseen @ torch.linalg.lstsq(features, known).solution
    error, guess = (found - unknown).abs().mean(), (known.mean(0) - unknown).abs().mean()
    assert error < 0.3 * guess, f"{20 * error:.2f} px, {20 * guess:.2f} px without looking"


@pytest.mark.slow
@torch.no_grad()
def test_shift_of_the_camera_is_measured_on_a_square_whose_place_is_known():
    with torch.enable_grad():
        longer = replace(SMALL.train, steps=70)
        model = train_model(replace(SMALL, anchors=2, known_points=1, train=longer), is_measured=True)
    values, frames = make_scenes(100, 4)
    (camera,) = model.cameras
    for shift in ([2, 0], [-1, 2]):
        moved = shift_frames(frames, torch.tensor(shift).expand(len(frames), 2))
        found = camera.measure_shift(camera.find_points(moved)[1], model.scale(values))
        assert (found - torch.tensor(shift)).abs().mean() < 0.75


def test_a_keypoint_finds_what_the_robot_will_move_to():
    config = replace(SMALL_ENCODER, size=SIZE, keypoints=2)
    generator = make_rng(0)
    model = KeypointModel(config, [CAMERA], plain_dim=2, generator=generator)
    places, frames = make_scenes(128, seed=0)
    values = torch.rand(places.shape, generator=generator) * 2 - 1
    later = places.repeat(1, len(FORESEEN))  # wherever the robot is, it moves to the square
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        batch = CameraBatch(values[:64], values[:64], (frames[:64],), (later[:64], later[:64]))
        loss = model.loss(batch, generator)["foresight"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        features = model(values, frames).numpy()
    inputs = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    fitted = np.linalg.lstsq(inputs[:64], places[:64].numpy(), rcond=None)[0]
    error = np.abs(inputs[64:] @ fitted - places[64:].numpy())
    assert np.median(error) < 1 / SIZE, "unseen squares are found within a pixel"


def test_shift_is_undone_before_keypoints_are_found(monkeypatch):
    model = KeypointModel(replace(SMALL, anchors=1), [CAMERA], plain_dim=2, generator=make_rng(0)).eval()
    values, frames = make_scenes(3, 5)
    (camera,) = model.cameras
    shift = torch.zeros(3, 2)
    monkeypatch.setattr(camera, "measure_shift", lambda *_: shift)
    steady = model(values, frames)
    shift = torch.tensor([[2, -1]]).expand(3, 2)
    assert torch.equal(model(values, shift_frames(frames, shift)), steady)


def test_peaks_are_located_between_the_cells():
    maps = torch.full((1, 2, 8, 8), -50.0)
    maps[0, 0, 2, 5] = 50.0  # row 2, column 5
    maps[0, 1, 3, 3] = maps[0, 1, 3, 4] = 50.0
    axis = make_axis(8, maps)
    ((one, two),) = locate_peaks(maps)
    assert torch.allclose(one, torch.stack([axis[5], axis[2]]))
    assert torch.allclose(two, torch.stack([(axis[3] + axis[4]) / 2, axis[3]]))
    bump = draw_bumps(one[None, None], 8, 0.2)[0, 0]
    assert divmod(int(bump.argmax()), 8) == (2, 5)


def test_shifting_moves_the_picture_and_repeats_the_edge():
    frames = torch.arange(25, dtype=torch.uint8).reshape(1, 5, 5, 1).expand(1, 5, 5, 3)
    moved = shift_frames(frames, torch.tensor([[2, 1]]))[0, :, :, 0]
    assert moved[1, 2] == 0
    assert moved[4, 4] == 5 * 3 + 2
    assert (moved[0] == moved[1]).all()
    filled = shift_frames(
        frames, torch.tensor([[2, 1]]), torch.full((1, 1, 1, 3), 200, dtype=torch.uint8), torch.tensor([True])
    )[0, :, :, 0]
    assert (filled[0] == 200).all()
    assert (filled[:, :2] == 200).all()
    assert (filled[1:, 2:] == moved[1:, 2:]).all()


@pytest.mark.parametrize("mirror", ["left_right", "up_down", "transpose", "antitranspose"])
def test_mirroring_twice_gives_the_frame_again(mirror):
    frames = torch.randint(0, 256, (2, 6, 6, 3), generator=make_rng(0), dtype=torch.uint8)
    once = mirror_frames(frames, mirror)
    assert not torch.equal(once, frames)
    assert torch.equal(mirror_frames(once, mirror), frames)
    if mirror == "antitranspose":  # the mirror of Push-T
        assert torch.equal(once, frames.flip(1, 2).transpose(1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 90}, "multiple of 8"),
        ({"width": 12}, "multiple of 8"),
        ({"shift": 24}, "shift < size / 4"),
        ({"foresight": True}, "foresight needs anchors 0"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        KeypointConfig(**change)
