"""Y-shaped trajectories: straight ahead, then 30° to one side (appendix "2D Branching Trajectories").

The appendix gives the velocity, the time of the fork and the number of points, but neither the speed nor the
duration. Chosen here: u = 1, and ten points per unit of time and density, t = 0, Δt, 2Δt, …, so that the fork
falls exactly on a point, at 45 % of the way, and 100·density points end at t = 10 − Δt.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nsde_policy.errors import ConfigError

SPEED = 1.0
"""u, state units per unit of time."""
FORK_TIME = 4.5
ANGLE = math.radians(30)
"""Half the angle between the branches."""
POINTS_PER_DENSITY = 100
DURATION = 10.0
"""Time that all points together stand for: points · Δt."""
FORK_X = SPEED * FORK_TIME
"""Where the branches part, on the line y = 0."""


@dataclass(frozen=True)
class Bifurcation:
    """The two trajectories there are: up and down."""

    density: int
    """1 for 100 points per trajectory, 10 for 1000."""

    def __post_init__(self) -> None:
        if self.density < 1:
            raise ConfigError(f"need density >= 1, got {self.density}")

    @property
    def points(self) -> int:
        """States per trajectory."""
        return POINTS_PER_DENSITY * self.density

    @property
    def steps(self) -> int:
        """Transitions per trajectory."""
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
        """When the states are, (points,), float64."""
        return torch.arange(self.points, dtype=torch.float64) * self.dt

    def trajectories(self) -> Tensor:
        """Both trajectories, up first, side by side, (points, 2, 2), float32; each is equally likely."""
        return positions(self.times()).float()


def positions(times: Tensor) -> Tensor:
    """Where both trajectories are at times (n,), up first: (n, 2, 2), the integral of the two velocities."""
    straight = SPEED * times.clamp(max=FORK_TIME)
    aside = SPEED * (times - FORK_TIME).clamp(min=0)
    x, y = straight + aside * math.cos(ANGLE), aside * math.sin(ANGLE)
    return torch.stack([torch.stack([x, y], -1), torch.stack([x, -y], -1)], dim=1)
