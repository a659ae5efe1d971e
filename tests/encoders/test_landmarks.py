"""Tests of the landmark encoder: what it finds in first frames, how it follows it, and what it learns."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsde_policy.core.spec import CameraSpec
from nsde_policy.data.frames import FrameFile
from nsde_policy.encoders.encoder_model import CameraBatch, RecordedFrames
from nsde_policy.encoders.landmarks.config import LandmarkConfig
from nsde_policy.encoders.landmarks.matching import Landmark, find_landmarks, follow
from nsde_policy.encoders.landmarks.model import LandmarkModel, find_peaks
from nsde_policy.errors import ConfigError
from nsde_policy.training.fit import BatchSource, fit
from tests.helpers.rng import make_rng

SIZE, LENGTH = 48, 12
SMALL = LandmarkConfig(size=SIZE, landmarks=4, width=8)
TINY = replace(SMALL, train=replace(SMALL.train, steps=150, batch_size=8))
CAMERA = CameraSpec("observation.images.top", SIZE, SIZE)
PIECES = {"red": (200, 30, 30), "green": (40, 180, 60)}


class Table:
    """Episodes on a patterned table: two pieces stand elsewhere in each, and an arm comes down over one."""

    def __init__(self, episodes: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        pattern = np.random.default_rng(0).integers(90, 120, (SIZE, SIZE, 1)).astype(np.uint8).repeat(3, 2)
        self.places = rng.uniform(8, SIZE - 9, (episodes, len(PIECES), 2)).round().astype(int)
        frames = np.tile(pattern, (episodes, LENGTH, 1, 1, 1))
        for episode, places in enumerate(self.places):
            for (column, row), colour in zip(places, PIECES.values(), strict=True):
                frames[episode, :, row - 1 : row + 2, column - 1 : column + 2] = colour
            for step in range(LENGTH):
                tip = int(places[0, 1] * step / (LENGTH - 1))
                frames[episode, step, : tip + 2, places[0, 0] - 2 : places[0, 0] + 3] = 250
            frames[episode, :, :3, :6] = 250  # the robot's base, the same in every episode
        self.frames = frames
        self.values = torch.from_numpy(rng.normal(size=(episodes, 2)))

    def find(self, most: int = 10) -> list[Landmark]:
        return find_landmarks([*torch.from_numpy(self.frames)], self.values, most)


def find_error(places: torch.Tensor, wanted: np.ndarray) -> float:
    """Return the largest distance of places (n, 2) to places that are wanted, except a constant offset."""
    difference = places.numpy() - wanted
    return float(np.linalg.norm(difference - np.median(difference, axis=0), axis=1).max())


def test_both_pieces_are_found_and_nothing_else():
    table = Table(8, seed=1)
    landmarks = table.find()
    nearest = [
        min(range(len(PIECES)), key=lambda k: find_error(each.match.places, table.places[:, k]))
        for each in landmarks
    ]
    assert {*nearest} == {*range(len(PIECES))}
    for landmark, piece in zip(landmarks, nearest, strict=True):
        assert find_error(landmark.match.places, table.places[:, piece]) < 0.5


def test_pieces_are_found_and_followed_on_a_chequered_table():
    table = Table(10, seed=3)
    squares = np.random.default_rng(1).integers(0, 2, (6, 6)).repeat(8, 0).repeat(8, 1)
    is_table = np.ptp(table.frames, axis=-1, keepdims=True) == 0
    frames = torch.from_numpy((table.frames + 120.0 * squares[..., None] * is_table).clip(0, 255)).byte()
    frames[:, :, :3, :6] = torch.tensor(PIECES["red"], dtype=torch.uint8)  # the robot's base
    landmarks = find_landmarks([*frames], table.values, most=10)
    for piece in range(len(PIECES)):
        nearest = min(landmarks, key=lambda each: find_error(each.match.places, table.places[:, piece]))
        places, age = follow(nearest.template, [*frames[:, :4]])
        assert (age == 0).all()
        assert find_error(places[3::4], table.places[:, piece]) < 1


def test_nothing_is_found_where_all_episodes_begin_alike():
    table = Table(1, seed=1)
    alike = [torch.from_numpy(table.frames[0])] * 6
    assert find_landmarks(alike, torch.zeros(6, 1), most=10) == []
    assert table.find() == [], "one episode shows no differences"


def test_parts_of_the_robot_are_no_landmarks():
    table = Table(8, seed=1)
    table.values = torch.from_numpy(table.places[:, 0]) * 0.01
    landmarks = table.find()
    assert landmarks
    assert all(find_error(each.match.places, table.places[:, 1]) < 0.5 for each in landmarks)


def test_what_moves_at_once_is_no_landmark():
    table = Table(8, seed=1)
    table.frames[:, 1:] = np.roll(table.frames[:, 1:], 1, axis=0)
    assert table.find() == []


def test_what_is_hardly_ever_seen_is_no_landmark():
    table = Table(8, seed=1)
    gone = np.median(table.frames[:, :1], axis=0, keepdims=True).astype(np.uint8)
    table.frames = np.concatenate(
        [table.frames[:, :6], np.broadcast_to(gone, (8, 40, SIZE, SIZE, 3))], axis=1
    )
    assert table.find() == []


def test_a_landmark_is_followed_until_the_arm_covers_it():
    table = Table(6, seed=3)
    landmarks = table.find()
    covered = min(landmarks, key=lambda each: find_error(each.match.places, table.places[:, 0]))
    places, age = follow(covered.template, [*torch.from_numpy(table.frames)])
    places, age = places.view(6, LENGTH, 2), age.view(6, LENGTH)
    is_clear = age[:, 0] == 0
    assert is_clear.sum() >= 5
    assert (age[is_clear, :4] == 0).all()
    assert (age[:, -1] > 0).all()
    assert age[~is_clear].isinf().all()
    assert find_error(places[is_clear, 3], table.places[is_clear.numpy(), 0]) < 0.5
    assert torch.equal(places[:, -1], places[:, -2]), "its place stays while it is hidden"


def test_a_piece_is_followed_to_another_background():
    table = Table(10, seed=3)
    frames = torch.from_numpy(table.frames[:, :1]).repeat(1, LENGTH, 1, 1, 1)
    landmarks = find_landmarks([*frames], table.values, most=10)
    nearest = min(landmarks, key=lambda each: find_error(each.match.places, table.places[:, 1]))
    green = torch.tensor(PIECES["green"], dtype=torch.uint8)
    for episode, (column, row) in enumerate(table.places[:, 1].tolist()):
        for step in range(1, LENGTH):
            frames[episode, step, row - 3 : row + 4] = 190
            frames[episode, step, row - 1 : row + 2, column - 1 : column + 2] = green
    places, age = follow(nearest.template, [*frames])
    assert (age == 0).all()
    assert find_error(places[LENGTH - 1 :: LENGTH], table.places[:, 1]) < 1


def test_places_are_means_around_the_highest_peak():
    maps = torch.full((1, 2, 20, 20), -20.0)
    maps[0, 0, 5, 7] = maps[0, 0, 5, 8] = 0.0
    maps[0, 1, 5, 7], maps[0, 1, 18, 2] = 0.0, -0.5
    places, mass = find_peaks(maps)
    assert torch.allclose((places[0, 0] + 1) * 10 - 0.5, torch.tensor([7.5, 5.0]), atol=1e-3)
    assert torch.allclose((places[0, 1] + 1) * 10 - 0.5, torch.tensor([7.0, 5.0]), atol=1e-3)
    assert mass[0, 0] > 0.99
    assert 0.6 < mass[0, 1] < 0.65, "the other peak has the rest"


class Frames(BatchSource[CameraBatch]):
    """Random frames of a table, with the targets of a model."""

    def __init__(self, table: Table, targets: tuple[torch.Tensor, ...]) -> None:
        self._frames = torch.from_numpy(table.frames).flatten(0, 1)
        self._targets = targets

    def sample(self, generator: torch.Generator) -> CameraBatch:
        rows = torch.randint(len(self._frames), (TINY.train.batch_size,), generator=generator)
        values = torch.zeros(len(rows), 1)
        return CameraBatch(values, values, (self._frames[rows],), tuple(each[rows] for each in self._targets))


def record(table: Table, folder: Path) -> RecordedFrames:
    episodes = len(table.frames)
    values = np.zeros((episodes * LENGTH, 1), np.float32)
    spans = tuple(range(i * LENGTH, (i + 1) * LENGTH) for i in range(episodes))
    file = FrameFile([table.frames.reshape(-1, SIZE, SIZE, 3)], len(values), size=SIZE, folder=folder)
    return RecordedFrames(values, values, spans, file)


@pytest.mark.slow
def test_pieces_are_located_in_unseen_episodes(tmp_path: Path):
    table, unseen = Table(10, seed=3), Table(20, seed=4)
    model = LandmarkModel(TINY, [CAMERA], plain_dim=1, generator=make_rng(0))
    fit(model, Frames(table, model.study(record(table, tmp_path))), TINY.train, seed=0)
    count = int(model.is_found.sum())
    assert 2 <= count < TINY.landmarks
    with torch.no_grad():
        features = model(torch.zeros(20, 1), torch.from_numpy(unseen.frames[:, 0]))
    places = (features.view(20, -1, 2) + 1) * (SIZE / 2) - 0.5
    assert (features.view(20, -1, 2)[:, count:] == 0).all(), "landmarks that are not found are 0"
    for piece in range(len(PIECES)):
        offsets = places[:, :count] - torch.from_numpy(unseen.places[:, None, piece])
        spread = (offsets - offsets.median(0).values).norm(dim=-1).median(0).values
        assert spread.min() < 0.7


def test_a_scene_without_landmarks_is_refused(tmp_path: Path):
    table = Table(4, seed=5)
    table.frames[:] = table.frames[:1]
    model = LandmarkModel(SMALL, [CAMERA], plain_dim=1, generator=make_rng(0))
    with pytest.raises(ConfigError, match=r"no landmarks: .* use --encoder keypoints"):
        model.study(record(table, tmp_path))
    model.mirror = "left_right"
    with pytest.raises(ConfigError, match="not mirrored"):
        model.study(record(table, tmp_path))
