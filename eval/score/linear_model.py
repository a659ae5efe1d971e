"""A linear model of the demonstrations, which a good policy should be better than."""

from collections.abc import Callable

import numpy as np

from nsde_policy.core.spec import StateSpec
from nsde_policy.data.angles import wrap_columns

from ..statistics import FloatArray

RIDGE = 1e-3
"""Penalty of the ridge regression, per frame and standardised feature."""
SMALLEST_STD = 1e-6
"""A feature that varies by a smaller fraction of its largest value counts as constant."""

Predictor = Callable[[FloatArray], FloatArray]
"""Predicts actions (frames, horizon, act_dim) from states (frames, history, d)."""


def fit_linear_model(states: FloatArray, actions: FloatArray, spec: StateSpec) -> Predictor:
    """Fit a ridge regression from states (frames, history, d) to actions (frames, horizon, act_dim).

    States are standardised, with angles as sine and cosine. Actions count as changes from the action before,
    which is part of the state.
    """
    raw = _list_features(states, spec)
    mean, std = raw.mean(0), raw.std(0)
    std = np.where(std > SMALLEST_STD * np.abs(raw).max(0), std, np.inf)
    features = (raw - mean) / std
    act_angles = [column - spec.obs_dim for column in spec.circular if column >= spec.obs_dim]
    changes = wrap_columns(actions - states[:, :1, spec.obs_dim :], act_angles)
    average = changes.mean(0)
    covariance = features.T @ features + RIDGE * len(features) * np.eye(features.shape[1])
    weights = np.linalg.solve(covariance, features.T @ (changes - average).reshape(len(changes), -1))

    def predict(states: FloatArray) -> FloatArray:
        change = (_list_features(states, spec) - mean) / std @ weights
        predicted: FloatArray = states[:, :1, spec.obs_dim :] + average + change.reshape(-1, *average.shape)
        return predicted

    return predict


def _list_features(states: FloatArray, spec: StateSpec) -> FloatArray:
    """Return states as rows (frames, features), with the sine and the cosine of each angle."""
    angles = list(spec.circular)
    plain = states.copy()
    plain[..., angles] = np.sin(states[..., angles])
    features = np.concatenate([plain, np.cos(states[..., angles])], axis=-1)
    return features.reshape(len(features), -1)
