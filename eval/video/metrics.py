"""Scores of predicted frames against true ones: SSIM, the amount of motion, and the Fréchet distance (FVD).

Frames are (..., 3, height, width) with values from -1 to 1, so the data range is 2; any device, any number of
leading dimensions.

The Fréchet distance is biased for few videos: two sets of n videos from the same distribution are not at
distance 0, but at about c/n with a c that grows with the number of features. Compare distances only at equal
n, and give the distance between two halves of the true videos as a floor.
"""

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.video.base import DATA_RANGE

Features = npt.NDArray[np.float64]
"""One row per video, (n, d)."""
SSIM_WINDOW, SSIM_SIGMA = 11, 1.5
"""Side and standard deviation of the Gaussian window of SSIM, pixels."""
MOTION_CELL = 4
"""Frames are averaged over squares of this side before motion is measured, which removes pixel noise."""
MOTION_THRESHOLD = 0.05
"""Change of a square over one frame that does not count as motion."""


def ssim(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the structural similarity of each frame (Wang et al. 2004), averaged over the channels.

    The window is a Gaussian of 11 × 11 pixels with σ = 1.5, K₁ = 0.01, K₂ = 0.03; only windows that lie
    inside the frame are averaged.
    """
    height, width = predicted.shape[-2:]
    rows = _window_matrix(height, predicted.device)
    columns = _window_matrix(width, predicted.device).T

    def blur(images: Tensor) -> Tensor:
        return rows @ images @ columns

    c1, c2 = (0.01 * DATA_RANGE) ** 2, (0.03 * DATA_RANGE) ** 2
    mean_a, mean_b = blur(predicted), blur(true)
    product = mean_a * mean_b
    squares = mean_a.square() + mean_b.square()
    covariance = blur(predicted * true) - product
    variances = blur(predicted.square() + true.square()) - squares
    similarity = (2 * product + c1) * (2 * covariance + c2) / ((squares + c1) * (variances + c2))
    return similarity.mean(dim=(-3, -2, -1))


@functools.lru_cache(maxsize=8)
def _window_matrix(size: int, device: torch.device) -> Tensor:
    """Return the matrix that takes `size` pixels to their Gaussian averages, (size - 10, size)."""
    if size < SSIM_WINDOW:
        raise ConfigError(f"SSIM needs frames of at least {SSIM_WINDOW} × {SSIM_WINDOW} pixels, got {size}")
    offset = torch.arange(SSIM_WINDOW, dtype=torch.float64) - SSIM_WINDOW // 2
    window = (-offset.square() / (2 * SSIM_SIGMA**2)).exp()
    matrix = torch.zeros(size - SSIM_WINDOW + 1, size, dtype=torch.float64)
    for row in range(len(matrix)):
        matrix[row, row : row + SSIM_WINDOW] = window / window.sum()
    return matrix.to(device, torch.float32)


def measure_motion(frames: Tensor) -> Tensor:
    """Return the amount of motion from each frame to the next, (n, length - 1), for frames (n, length, …).

    It is the sum over squares of 4 × 4 pixels and colours of max(|change of the mean| - 0.05, 0). The ratio
    of a prediction's motion to the true one is 0 for a frozen video, 1 for the true one, and hardly changed
    by independent pixel noise up to a standard deviation of 0.05.
    """
    cells = functional.avg_pool2d(frames.flatten(0, 1), MOTION_CELL)
    cells = cells.reshape(*frames.shape[:2], *cells.shape[1:])
    change = (cells[:, 1:] - cells[:, :-1]).abs()
    return (change - MOTION_THRESHOLD).clamp(min=0).sum(dim=(-3, -2, -1))


def frechet_distance(a: Features, b: Features) -> float:
    """Return ‖μ_a − μ_b‖² + tr(Σ_a + Σ_b − 2 (Σ_a Σ_b)^½), the Fréchet distance of two Gaussian fits.

    With Σ = RᵀR, the trace of the root is the sum of the singular values of R_a R_bᵀ. Unlike roots of the
    eigenvalues of Σ_a Σ_b, these are exact to rounding even if there are fewer videos than features.
    """
    if min(len(a), len(b)) < 2:
        raise ComparisonError(f"the Fréchet distance needs at least two videos, got {min(len(a), len(b))}")
    factors = [(each - each.mean(0)) / np.sqrt(len(each) - 1) for each in (a, b)]
    first, second = (np.asarray(np.linalg.qr(each, mode="r")) for each in factors)
    spread = np.square(first).sum() + np.square(second).sum()
    overlap = np.linalg.norm(first @ second.T, "nuc")
    distance = np.square(a.mean(0) - b.mean(0)).sum() + spread - 2 * overlap
    return float(max(distance, 0.0))
