"""Tests of the visible fraction, which is fitted after the training of an encoder."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nsde_policy.data.types import Demonstrations
from nsde_policy.encoders.occlusion import RandomOccluder, occlude_frames
from nsde_policy.training.encoder import WRONG, fit_visibility
from tests.encoders.test_keypoints import SMALL, make_scenes, train_model
from tests.helpers.rng import make_rng


@pytest.mark.slow
def test_visible_fraction_follows_the_errors_of_features_in_frames_of_other_scenes():
    model, (_, frames) = train_model(SMALL, is_measured=False).eval(), make_scenes(700, seed=7)
    values, unseen = torch.zeros(700, 2), slice(500, 700)
    with torch.no_grad():
        features = model(values, frames)
    seen = values[:500].numpy()
    demos = Demonstrations(seen, seen, np.array([400, 500]))
    file = SimpleNamespace(read=lambda index: [frames.numpy()[index]])
    model.visibility = fit_visibility(model, file, demos, features, [1], seed=0)
    occluded = occlude_frames(frames[unseen], [RandomOccluder(0.5, (0.05, 0.3))], make_rng(1))
    with torch.no_grad():
        found, summary = model.summarize(values[unseen], occluded)
        visible = model.visibility(summary)
    right = ((found - features[unseen]).abs() < WRONG * features.std(0)).float().mean(1)
    assert 0 <= visible.min() <= visible.max() <= 1
    assert float(torch.corrcoef(torch.stack([visible, right]))[0, 1]) > 0.6
    assert abs(float((visible - right).mean())) < 0.15
    is_clean = (occluded == frames[unseen]).flatten(1).all(1)
    assert visible[is_clean].quantile(0.05) > model.visibility.usual - 0.05
