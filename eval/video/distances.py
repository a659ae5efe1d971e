"""Fréchet distance between two sets of videos, given as features: FVD with those of I3D.

It is biased for few videos: two sets of n videos from the same distribution are not at distance 0, but at
about c/n with a c that grows with the number of features. Compare distances only at equal n, and give the
distance between two halves of the true videos as a floor.
"""

import numpy as np
import numpy.typing as npt

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.statistics import Estimate

Features = npt.NDArray[np.float64]
"""One row per video, (n, d)."""
DISTANCE_RESAMPLES = 100
"""Number of bootstrap resamples of the videos."""


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


def estimate_distance(
    predicted: Features, true: Features, *, resamples: int = DISTANCE_RESAMPLES
) -> Estimate:
    """Return the Fréchet distance with its 95 % bootstrap interval over videos.

    A prediction and the true video of its context are resampled together. A resample holds fewer different
    videos and so lies too far away on average; the interval is shifted by that.
    """
    n = len(true)
    value = frechet_distance(predicted, true)
    rng = np.random.default_rng(0)
    found = [frechet_distance(predicted[rows], true[rows]) for rows in rng.integers(n, size=(resamples, n))]
    low, high = np.quantile(found, [0.025, 0.975]) - np.mean(found) + value
    return Estimate(value, max(float(low), 0.0), float(high), n)
