"""Tests for keypoints that are trained to predict what is measured later."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.encoder_model import CameraBatch
from nsde_policy.encoders.keypoints.config import FORESEEN, SMALL_ENCODER, KeypointConfig
from nsde_policy.encoders.keypoints.model import KeypointModel
from nsde_policy.errors import ConfigError

SIDE, ROWS = 32, 64


def draw_squares(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return frames with a red square at a random place, and its places in [-1, 1], (n, 2)."""
    rng = np.random.default_rng(0)
    corner = rng.integers(4, SIDE - 8, (n, 2))
    frames = np.full((n, SIDE, SIDE, 3), 200, np.uint8)
    for frame, (x, y) in zip(frames, corner, strict=True):
        frame[y : y + 4, x : x + 4] = (220, 30, 30)
    return torch.from_numpy(frames), torch.from_numpy((corner + 2) * 2 / SIDE - 1).float()


def test_a_keypoint_finds_what_the_robot_will_move_to():
    config = replace(SMALL_ENCODER, size=SIDE, keypoints=2)
    generator = torch.Generator().manual_seed(0)
    cameras = [CameraSpec("top", height=SIDE, width=SIDE)]
    model = KeypointModel(config, cameras, plain_dim=2, generator=generator)
    frames, places = draw_squares(2 * ROWS)
    values = torch.rand(places.shape, generator=generator) * 2 - 1
    later = places.repeat(1, len(FORESEEN))  # wherever the robot is, it moves to the square
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        batch = CameraBatch(values[:ROWS], values[:ROWS], (frames[:ROWS],), (later[:ROWS], later[:ROWS]))
        loss = model.loss(batch, generator).parts["foresight"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        features = model(values, frames).numpy()
    inputs = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    fitted = np.linalg.lstsq(inputs[:ROWS], places[:ROWS].numpy(), rcond=None)[0]
    error = np.abs(inputs[ROWS:] @ fitted - places[ROWS:].numpy())
    assert np.median(error) < 2 / SIDE, "unseen squares are found within a pixel"


def test_foresight_takes_no_anchors():
    with pytest.raises(ConfigError, match="foresight needs anchors 0"):
        KeypointConfig(foresight=True)
