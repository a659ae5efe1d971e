"""Scale of σ: one factor per dimension, fitted after training on episodes that were held out of it."""

import logging
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from nsde_policy.bounds import Fraction
from nsde_policy.config import check_value
from nsde_policy.core.batches import Transitions
from nsde_policy.data.angles import wrap_columns
from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import ConfigError
from nsde_policy.methods.base import PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.loading import load_model
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory

from .dataset import build_transitions

logger = logging.getLogger(__name__)

FITTED_LEVELS = (0.5, 0.68, 0.95)
"""Probabilities of the central intervals that shall hold that fraction of the held-out steps."""
FACTOR_LIMITS = (0.1, 10.0)
"""Smallest and largest factor; beyond them the held-out episodes are not like the others."""
BATCH_ROWS = 8192
"""States whose next state is predicted at once."""


def check_std_scale(config: RunConfig, fraction: float) -> None:
    """Raise `ConfigError` if the fraction is invalid, or the method has no σ that can be scaled."""
    check_value("--scale-std", fraction, Fraction)
    if fraction and not get_method(config.method).model_class().reports_std:
        raise ConfigError(f"the method {config.method} reports no σ to scale: leave out --scale-std")
    if fraction and config.demos.images:
        raise ConfigError("σ of features of images is not scaled: leave out --scale-std")


def fit_std_scale(run: RunDirectory, demos: Demonstrations, *, device: str) -> np.ndarray:
    """Scale the σ of a trained run so that it fits held-out demonstrations, and write its weights.

    Return the factor of each dimension of a state, (d,).
    """
    record, model = load_model(run)
    config = record.config
    pairs = build_transitions(demos, config.demos, history=config.model.history, final_action_weight=1.0)
    ratios = measure_errors(model.to(device), pairs, config.model.history, record.spec.circular)
    factor = fit_factors(ratios, (pairs.weight > 0).numpy())
    model.scale_std(torch.from_numpy(factor))
    run.save_weights(model.state_dict())
    low, middle, high = np.quantile(factor, (0, 0.5, 1))
    logger.info(
        "σ is scaled to fit %d episodes: times %.2f (from %.2f to %.2f)", len(demos), middle, low, high
    )
    return factor


def measure_errors(
    model: PolicyModel[Any], pairs: Transitions, history: int, circular: tuple[int, ...]
) -> np.ndarray:
    """Return the errors of predicted next states, in σ, (rows, d)."""
    device = next(model.parameters()).device
    errors = []
    for rows in torch.split(torch.arange(len(pairs.x)), BATCH_ROWS):
        states = pairs.x[rows].reshape(len(rows), history, -1).to(device)
        predicted = model.predict_step(states, sampling=model.learned_sampling())
        mean, std = (tensor.double().cpu().numpy() for tensor in predicted)
        errors.append(wrap_columns(pairs.x_next[rows].double().numpy() - mean, list(circular)) / std)
    return np.concatenate(errors)


def fit_factors(ratios: np.ndarray, is_recorded: np.ndarray) -> np.ndarray:
    """Return the factor of each dimension with which its intervals hold their fraction of the steps.

    The factors that are right for each of `FITTED_LEVELS` are averaged in the logarithm. A factor of maximum
    likelihood, the root mean square, would follow rare large errors, and make the 68 % interval too wide.
    `ratios` are errors in σ, some of which were not recorded, both (rows, d).
    """
    bounds = [NormalDist().inv_cdf(0.5 + level / 2) for level in FITTED_LEVELS]
    factors = np.ones(ratios.shape[1])
    for column, (values, recorded) in enumerate(zip(np.abs(ratios).T, is_recorded.T, strict=True)):
        if recorded.any():
            ratio = np.quantile(values[recorded], FITTED_LEVELS) / bounds
            factors[column] = np.exp(np.log(np.clip(ratio, *FACTOR_LIMITS)).mean())
    return factors
