"""Frames as numbers from -1 to 1, and their PSNR."""

import torch
from torch import Tensor

RGB_CHANNELS = 3
DATA_RANGE = 2.0
"""Largest minus smallest value of a pixel."""
MAX_PSNR = 60.0
"""Largest PSNR, dB: about that of a frame and the same frame rounded to bytes. Without this limit, the few
videos in which nothing moves would decide the mean."""


def to_unit(frames: Tensor) -> Tensor:
    """Convert frames (..., size, size, 3) uint8 to (..., 3, size, size) with values from -1 to 1."""
    return frames.movedim(-1, -3).to(torch.float32) / 127.5 - 1


def psnr(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each frame, 10 log10(range² / mean square error), dB.

    Frames are (..., 3, height, width) with values from -1 to 1.
    """
    error = (predicted - true).square().mean(dim=(-3, -2, -1)) / DATA_RANGE**2
    return -10 * error.clamp(min=10 ** (-MAX_PSNR / 10)).log10()
