"""Scale of σ: one factor per dimension, with which σ fits episodes that were held out of the training."""

import logging
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from nsde_policy.core.batches import Transitions
from nsde_policy.core.spec import StateSpec
from nsde_policy.data.angles import wrap_columns
from nsde_policy.data.types import Demonstrations
from nsde_policy.methods.base import PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.loading import load_model
from nsde_policy.run_directory import RunDirectory

from .dataset import build_transitions

logger = logging.getLogger(__name__)

FITTED_LEVELS = (0.5, 0.68, 0.95)
"""Probabilities of the central intervals that shall hold that fraction of the held-out steps."""
FACTOR_LIMITS = (0.1, 10.0)
"""Smallest and largest factor; beyond them the held-out episodes are not like the others."""
BATCH_ROWS = 8192
"""States whose next state is predicted at once."""


def measure_std_factors(run: RunDirectory, demos: Demonstrations, *, device: str) -> tuple[float, ...]:
    """Return the factors with which the σ of a trained run fits held-out demonstrations.

    There is one for each plain observation and action column: another training with the same settings has
    similar σ there, but another encoder has other features. No σ fits actions that take two values, so their
    factor is 1. Methods without σ have no factors.
    """
    if not get_method(run.read_record().config.method).model_class().reports_std:
        return ()
    record, model = load_model(run)
    config, spec = record.config, record.spec
    pairs = build_transitions(demos, config.demos, history=config.model.history, final_action_weight=1.0)
    ratios = measure_errors(model.to(device), pairs, config.model.history, spec.circular)
    factors = fit_factors(ratios, (pairs.weight > 0).numpy())
    factors[[spec.obs_dim + column for column, *_ in spec.binary]] = 1.0
    return tuple(factors[find_plain_columns(spec)].tolist())


def scale_std(run: RunDirectory, factors: tuple[float, ...]) -> tuple[float, ...]:
    """Multiply the σ of a trained run by factors of its plain columns, and write its weights.

    Return the factors, or none if they are of other columns.
    """
    if not factors:
        return ()
    record, model = load_model(run)
    columns = find_plain_columns(record.spec)
    if len(factors) != len(columns):
        logger.warning("σ is not scaled: the preset is of %d columns, not %d", len(factors), len(columns))
        return ()
    factor = torch.ones(record.spec.dim, dtype=torch.float64)
    factor[columns] = torch.tensor(factors, dtype=torch.float64)
    model.scale_std(factor)
    run.save_weights(model.state_dict())
    low, middle, high = np.quantile(factors, (0, 0.5, 1))
    logger.info("σ is scaled as the preset measured: times %.2f (from %.2f to %.2f)", middle, low, high)
    return factors


def find_plain_columns(spec: StateSpec) -> list[int]:
    """Return the columns of a state that are not features of camera frames."""
    return [*range(spec.plain_dim), *range(spec.obs_dim, spec.dim)]


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
