"""Predictions of a policy as shapes to draw: sampled paths with their σ, and compared plans."""

import numpy as np
import torch

from nsde_policy.config import Sampling
from nsde_policy.envs.live import LiveTable
from nsde_policy.eval.render.video import sample_forecast
from nsde_policy.interface.planner import History, Plan, PolicySpec
from nsde_policy.policy.policy import Policy
from nsde_policy.tasks.drawing import Forecast

FAN_STEPS = 16
"""Control periods that the sampled paths look ahead."""
FAN_BLOCKS = 4
_FAN_SEED = 2**32
"""Seed of the paths' noise: the same in every frame, so that each path moves smoothly."""


def sample_paths(policy: Policy, history: History, sampling: Sampling, n: int) -> Forecast | None:
    """Sample n futures with their σ; None if the method predicts no states, or a future diverges."""
    if not policy.model.predicts_states or n < 1:
        return None
    generators = [torch.Generator().manual_seed(_FAN_SEED + row) for row in range(n)]
    forecast = sample_forecast(
        policy, history, steps=FAN_STEPS, generators=generators, sampling=sampling, std=True
    )
    if forecast.obs is None or forecast.std is None:
        return None
    is_finite = np.isfinite(forecast.obs).all() and np.isfinite(forecast.std).all()
    return forecast if is_finite else None


def describe_fan(forecast: Forecast | None, spec: PolicySpec, table: LiveTable) -> dict[str, object] | None:
    """Return sampled futures as shapes to draw on the page.

    Returns:
        For JSON: "paths" of the agent (x and y in turn, from the present), "sigma", the standard deviation of
        its next position along each path in pixels, and "block", predicted poses at the end, which policies
        with cameras and tasks without a block do not know. None without a forecast.
    """
    if forecast is None or forecast.obs is None or forecast.std is None:
        return None
    futures, page = forecast.obs.swapaxes(0, 1), table.page
    paths = page.to_page(futures[:, :, table.agent])
    std = forecast.std.swapaxes(0, 1)[:, :, table.agent] * page.scale
    ends = [] if spec.cameras else [table.describe(state)[2:] for state in futures[:FAN_BLOCKS, -1]]
    return {
        "paths": _round_rows(paths.reshape(len(paths), -1), 1),
        "sigma": _round_rows(np.sqrt(np.square(std).mean(-1)), 2),
        "block": [pose for pose in ends if pose],
    }


def describe_candidates(plan: Plan | None, table: LiveTable) -> list[list[int]]:
    """Return the paths of the agent along compared plans, the chosen one first, x and y in turn in pixels."""
    if plan is None or plan.candidates is None:
        return []
    actions = plan.candidates[:, 1:, -plan.actions.shape[1] :]
    rejected = np.abs(actions - plan.actions).max(axis=(1, 2))
    paths = table.page.to_page(plan.candidates[np.argsort(rejected, kind="stable")][..., table.agent])
    pixels: list[list[int]] = np.rint(paths.reshape(len(paths), -1)).astype(int).tolist()
    return pixels


def _round_rows(values: np.ndarray, digits: int) -> list[list[float]]:
    rows: list[list[float]] = np.round(values.astype(np.float64), digits).tolist()
    return rows
