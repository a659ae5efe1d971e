"""Episodes that hold their number, cheap to import for processes that record them."""

from typing import Any

import numpy as np

from nsde_policy.data import Episode


def make_episode(number: int, steps: int = 7) -> Episode:
    """Make an episode with its number and the step in every frame."""
    step = np.arange(steps)
    obs = np.stack([np.full(steps, number), step, step * 0.1], axis=1)
    return Episode(obs=obs, act=-obs[:, :2])


def make_images(number: int, steps: int = 7) -> dict[str, Any]:
    return {"img": np.full((steps, 200, 200, 3), number, np.uint8)}
