"""What a Neural SDE expects, as shapes to draw: a fan of sampled futures, its σ, the drift around it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nsde_policy.config import Sampling
from nsde_policy.inference.history import History
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.base import Draws

HORIZON = 16
"""Control periods a fan looks ahead."""
GHOSTS = 4
"""Futures of the block that are drawn."""
REACH, GRID = 90.0, 9
"""How far around the agent the drift is drawn, pixels, and at how many points across."""
_NOISE = 2**32
"""Seed of the fan's noise: the same at every moment, so that each strand moves smoothly."""


@dataclass(frozen=True)
class Fan:
    """Sampled futures."""

    agent: np.ndarray
    """Paths of the agent, (n, steps + 1, 2), the present first."""
    sigma: np.ndarray
    """σ of the agent's next position along each path, over both axes, pixels, (n, steps)."""
    block: np.ndarray
    """Where the block may be at the end, (≤ GHOSTS, 3)."""

    @classmethod
    def of(cls, policy: Policy, memory: History, sampling: Sampling, n: int) -> "Fan | None":
        """Sample n futures; None from methods that foresee no states, and where they run off to infinity."""
        model = policy.model
        if not model.foresees_states or n < 1:
            return None
        past = torch.from_numpy(memory.states()).expand(n, -1, -1)
        draws = Draws([torch.Generator().manual_seed(_NOISE + row) for row in range(n)])
        with torch.inference_mode():
            paths = model.sample_futures(past, steps=HORIZON, draws=draws, sampling=sampling)
            sigma = model.futures_std(past, paths, sampling=sampling)[:, :, :2]
        if not bool(paths.isfinite().all() & sigma.isfinite().all()):
            return None
        return cls(
            agent=paths[:, :, :2].numpy(),
            sigma=sigma.square().mean(-1).sqrt().numpy(),
            block=paths[:GHOSTS, -1, 2:5].numpy(),
        )

    def to_json(self) -> dict[str, Any]:
        """Rounded to what can be seen."""
        return {
            "paths": _rounded(self.agent.reshape(len(self.agent), -1), 1),
            "sigma": _rounded(self.sigma, 1),
            "block": _rounded(self.block, 2),
        }


def drift_field(policy: Policy, memory: History, sampling: Sampling) -> list[list[float]] | None:
    """Where the flow f + αd would take the agent in one control period, were it elsewhere.

    Rows of x, y, dx, dy in pixels. The agent is moved together with its command and its past, the block
    stays. None from methods that have no drift.
    """
    axis = np.linspace(-REACH, REACH, GRID)
    offsets = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    states = np.repeat(memory.states()[None], len(offsets), axis=0)
    for columns in (slice(0, 2), slice(policy.obs_dim, policy.obs_dim + 2)):
        states[:, :, columns] += offsets[:, None]
    with torch.inference_mode():
        step = policy.model.drift_step(torch.from_numpy(states), sampling=sampling)
    if step is None:
        return None
    drift = step[:, :2].numpy()
    inside = ((states[:, 0, :2] > 5) & (states[:, 0, :2] < 507)).all(axis=1)
    inside &= np.isfinite(drift).all(axis=1)
    return _rounded(np.hstack([states[:, 0, :2], drift])[inside], 1)


def _rounded(values: np.ndarray, digits: int) -> list[list[float]]:
    rows: list[list[float]] = np.round(values.astype(np.float64), digits).tolist()
    return rows
