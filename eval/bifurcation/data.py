"""Y-shaped trajectories: straight ahead, then 30° to one side (appendix "2D Branching Trajectories").

The appendix gives the velocity, the time of the fork and the number of points, but neither the speed nor the
duration. Chosen here: u = 1, and ten points per unit of time and density, t = 0, Δt, 2Δt, …, so that the fork
falls exactly on a point, at 45 % of the way, and 100·density points end at t = 10 − Δt.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig

SPEED = 1.0
"""u, state units per unit of time."""
FORK_TIME = 4.5
ANGLE = math.radians(30)
"""Half the angle between the branches."""
POINTS_PER_DENSITY = 100
DURATION = 10.0
"""Number of points times Δt."""
FORK_X = SPEED * FORK_TIME
"""x of the fork, which lies on y = 0."""


@dataclass(frozen=True)
class Bifurcation(BaseConfig):
    """The data set: two equally likely trajectories, up and down."""

    density: Count
    """1 for 100 points per trajectory, 10 for 1000."""

    @property
    def points(self) -> int:
        """Number of states per trajectory."""
        return POINTS_PER_DENSITY * self.density

    @property
    def steps(self) -> int:
        """Number of transitions per trajectory."""
        return self.points - 1

    @property
    def dt(self) -> float:
        """Time between two states."""
        return DURATION / self.points

    @property
    def length(self) -> float:
        """Length of a trajectory, state units: 9.9 or 9.99."""
        return SPEED * self.dt * self.steps

    def times(self) -> Tensor:
        """Return the times of the states, (points,), float64."""
        return torch.arange(self.points, dtype=torch.float64) * self.dt

    def trajectories(self) -> Tensor:
        """Return both trajectories, up first, (points, 2, 2), float32: the integral of the two velocities."""
        times = self.times()
        straight = SPEED * times.clamp(max=FORK_TIME)
        aside = SPEED * (times - FORK_TIME).clamp(min=0)
        x, y = straight + aside * math.cos(ANGLE), aside * math.sin(ANGLE)
        return torch.stack([torch.stack([x, y], -1), torch.stack([x, -y], -1)], dim=1).float()
