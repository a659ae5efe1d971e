"""Tests of occluded frames, and of an encoder that learns to see past occlusion."""

from dataclasses import replace

import pytest
import torch

from nsde_policy.encoders import occlusion
from nsde_policy.encoders.encoder_model import CameraBatch
from nsde_policy.encoders.keypoints.model import KeypointModel
from nsde_policy.encoders.occlusion import (
    OCCLUDERS,
    EpisodeOcclusion,
    RandomOccluder,
    occlude_frames,
    sample_masks,
)
from nsde_policy.training.fit import BatchSource, fit
from tests.encoders.test_keypoints import SMALL, make_scenes, train_model
from tests.helpers.rng import make_rng


def test_occluders_cover_the_given_fraction_of_frames_inside_the_edge():
    fractions = sample_masks(2000, 64, RandomOccluder(1.0, (0.1, 0.1)), make_rng(0)).float().mean((1, 2))
    assert fractions.max() == pytest.approx(0.1, abs=0.01)
    assert fractions.quantile(0.5) > 0.08
    assert fractions.min() > 0.02  # at a corner, a quarter of it is left


def test_a_fraction_of_the_frames_is_occluded():
    _, frames = make_scenes(400, seed=0)
    occluded = occlude_frames(frames, [RandomOccluder(0.6, (0.05, 0.2))], make_rng(0))
    changed = (occluded != frames).flatten(1).any(1).float().mean()
    assert changed == pytest.approx(0.6, abs=0.08)
    assert torch.equal(occlude_frames(frames, [RandomOccluder(0.0, (0.05, 0.2))], make_rng(0)), frames)
    assert torch.equal(occlude_frames(frames, [RandomOccluder(0.6, (0.05, 0.2))], make_rng(0)), occluded)


def test_a_frame_may_have_several_occluders_which_look_alike():
    black = torch.zeros(400, 64, 64, 3, dtype=torch.uint8)
    small = OCCLUDERS[1]._replace(frequency=1.0)
    one, three = (
        (occlude_frames(black, [small] * count, make_rng(0)) > 0).any(3).float().mean() for count in (1, 3)
    )
    assert float(three / one) == pytest.approx(3, abs=0.5)
    several = occlude_frames(black, [small] * 3, make_rng(0)).flatten(1, 2)
    plain = [frame[(frame > 0).any(1)].unique(dim=0) for frame in several if frame.any()]
    assert sum(len(colours) == 1 for colours in plain) > 100  # of four kinds, two are of one colour


def test_some_frames_are_clean(monkeypatch: pytest.MonkeyPatch):
    for name in ("GAIN", "NOISE"):
        monkeypatch.setattr(occlusion, name, 0.0)
    frames = torch.randint(0, 256, (1000, 32, 32, 3), generator=make_rng(1)).to(torch.uint8)
    clean = (occlusion.disturb_frames(frames, make_rng(0)) == frames).flatten(1).all(1).float().mean()
    assert clean == pytest.approx(0.3 + 0.7 * 0.5**5, abs=0.04)  # or each occluder is absent by chance


def test_an_episode_has_one_occluder_and_one_light():
    occlusion = EpisodeOcclusion(2, 32, RandomOccluder(1.0, (0.1, 0.2)), 0.15, make_rng(0))
    frames = torch.full((4, 32, 32, 3), 128, dtype=torch.uint8)
    seen = occlusion.apply(frames, torch.tensor([0, 1, 0, 1]))
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[1])


class Lessons(BatchSource[CameraBatch]):
    """Clean frames with the features of a teacher."""

    def __init__(self, teacher: KeypointModel) -> None:
        _, self._frames = make_scenes(400, seed=0)
        self._values = torch.full((400, 2), 0.5)
        with torch.no_grad():
            self.features = teacher(self._values, self._frames)

    def sample(self, generator: torch.Generator) -> CameraBatch:
        rows = torch.randint(400, (32,), generator=generator)
        features = self.features[rows]
        return CameraBatch(
            self._values[rows], self._values[rows], (self._frames[rows],), (features, features)
        )


@pytest.mark.slow
def test_an_encoder_that_learned_from_a_teacher_sees_past_occlusion():
    model = train_model(SMALL, is_measured=False).train()
    lessons = Lessons(model)
    _, frames = make_scenes(200, seed=5)
    values = torch.full((200, 2), 0.5)
    occluded = occlude_frames(frames, [RandomOccluder(1.0, (0.05, 0.1))], make_rng(1))

    @torch.no_grad()
    def measure_error() -> float:
        return float((model(values, occluded) - clean).abs().mean())

    with torch.no_grad():
        clean = model(values, frames)
    before = measure_error()
    decoder = model.cameras[0].decoder.state_dict()
    decoder = {name: values.clone() for name, values in decoder.items()}
    model.learn_from_teacher(lessons.features.std(0))
    config = replace(SMALL.train, steps=150)
    fit(model, lessons, config, seed=0)
    assert measure_error() < 0.6 * before
    for name, weights in model.cameras[0].decoder.state_dict().items():
        assert torch.equal(weights, decoder[name])
