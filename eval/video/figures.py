"""Animations of predicted videos."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from nsde_policy.eval.render.pictures import encode_gif, join_pictures
from nsde_policy.files import replace_file
from nsde_policy.video.pixels import to_bytes

LEAST_SIDE = 160
"""Smallest side of a frame in an animation, pixels."""


def write_animation(
    context: Tensor, videos: Mapping[str, Tensor], path: Path, *, period_s: float = 0.15
) -> None:
    """Write videos side by side as an animated GIF: the context, then the predicted frames.

    The context is (context, size, size, 3) uint8. Videos are (steps, 3, size, size) with values from -1 to 1,
    by title, the truth first.
    """
    seen = [[frame] * len(videos) for frame in context.cpu().numpy()]
    predicted = zip(*(to_bytes(video).cpu().numpy() for video in videos.values()), strict=True)
    pictures = []
    for k, frames in enumerate((*seen, *predicted), 1 - len(seen)):
        scale = -(-LEAST_SIDE // len(frames[0]))
        row = {
            title: np.kron(frame, np.ones((scale, scale, 1), np.uint8))
            for title, frame in zip(videos, frames, strict=True)
        }
        pictures.append(join_pictures(row, title=f"frame +{k}" if k > 0 else f"frame {k}, given"))
    replace_file(path, encode_gif(pictures, period_s=period_s, hold_s=1.0, colours=256))
