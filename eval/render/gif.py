"""Animated GIF files of picture sequences."""

import io
from collections.abc import Sequence

import numpy as np

from nsde_policy.errors import import_optional

PALETTE_SAMPLES = 12
"""Pictures from which the common palette is chosen."""


def encode_gif(
    pictures: Sequence[np.ndarray], *, period_s: float, hold_s: float = 2.0, colours: int = 64
) -> bytes:
    """Encode pictures as the content of a GIF with one common palette, so that unchanged areas take no space.

    Args:
        pictures: (height, width, 3) uint8, all of one size.
        period_s: Time between two pictures.
        hold_s: Time for which the last one is shown before the first follows.
        colours: Size of the palette.
    """
    image = import_optional("PIL.Image", "plot")
    step = max(len(pictures) // PALETTE_SAMPLES, 1)
    palette = image.fromarray(np.concatenate(pictures[::step])).quantize(colours, dither=image.Dither.NONE)
    images = [
        image.fromarray(picture).quantize(palette=palette, dither=image.Dither.NONE) for picture in pictures
    ]
    durations = [round(1000 * period_s)] * (len(images) - 1) + [round(1000 * hold_s)]
    buffer = io.BytesIO()
    images[0].save(
        buffer, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=False
    )
    return buffer.getvalue()
