"""Geometry-aware Policy Imitation: follow the nearest demonstrations (Li et al. 2025, arXiv 2510.08787).

Nothing is learned: demonstrations are curves in the space of states. The policy adds two flows, a progression
flow along the nearest demonstrations and an attraction flow towards them. A plan integrates their sum from
the last action. It runs along the demonstration, and its deviation shrinks by 1 − λ₂ per period.

Deviation: attraction acts on the last action, which every robot has. The original's acts on the agent's
position. With λ₂ = 1 the plans agree.
Deviation: λ₁ = 1, the speed of the demonstration, as in the authors' runs.
Deviation: `neighbours` counts states, as in the authors' code; in the paper it counts demonstrations.
Deviation: the authors exclude states used before and let the noise decay. Plans here depend on the present
alone, and the last states of demonstrations, at which a robot would stop, are left out (`horizon`).
Deviation: angles are compared by sine and cosine; the original's difference in half turns weighs less.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from nsde_policy.bounds import Length, Natural, NonNegative, Size
from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.batches import Windows
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import wrap_circular

from ..base import BatchRng, choose_sampling
from ..registry import register_method
from .knn import StoredWindows


@dataclass(frozen=True)
class GPISampling(Sampling):
    """How the nearest recorded states become actions."""

    neighbours: Size = 1
    """Recorded states whose flows are averaged, weighted by 1 / distance."""
    attraction: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """λ₂: fraction of the deviation from the demonstration that is corrected per period."""
    noise: NonNegative = 0.01
    """Standard deviation of noise on the observation, in half ranges; it varies the nearest state."""


@dataclass(frozen=True)
class GPIConfig(WindowConfig):
    """Settings of Geometry-aware Policy Imitation."""

    history: Length = 1
    """Number of observations that are compared, including the current one."""
    horizon: Length = 20
    """Actions stored with a state (T_p); the last horizon − chunk states of an episode are left out."""
    object_pose: tuple[Natural, Natural, Natural] | None = None
    """Columns of the observation with x, y and angle of the object in whose frame actions are followed."""
    sampling: GPISampling = field(default_factory=GPISampling)
    """Default settings of sampling."""


PRESETS = dict.fromkeys(("default", "fast"), Preset(GPIConfig(), TrainConfig(steps=1), chunk=12))


@register_method("gpi", title="GPI", config=GPIConfig, presets=PRESETS)
class GPI(StoredWindows):
    """a_j = a*_j + (1 − λ₂)^j (a₀ − a*₀), in the frame of an object or of the table."""

    config: GPIConfig

    def __init__(self, config: GPIConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__(config, spec, generator=generator)
        if config.object_pose is not None:
            sizes = f"{spec.plain_dim} measured columns and actions of {spec.act_dim} numbers"
            rule = f"object_pose {config.object_pose} needs these columns and actions (x, y), got {sizes}"
            require(config, max(config.object_pose) < spec.plain_dim and spec.act_dim == 2, rule)

    def prepare(self, data: Windows) -> None:
        """Store every window, with actions in the frame of its object."""
        super().prepare(data)
        self.previous = self._enter_frame(data.states, self.previous[:, None])[:, 0]
        self.actions = self._enter_frame(data.states, self.actions)

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Follow the nearest recorded states from the last action; noise may change which they are."""
        settings = choose_sampling(self.config.sampling, sampling)
        query = self._encode(states)
        noisy = query + settings.noise * rng.normal(query.shape[-1])
        distance, nearest = self._find_nearest(noisy, settings.neighbours)
        weight = distance.clamp_min(1e-8).log().neg().softmax(-1)[..., None, None]
        circular = self.layout.is_circular[self.layout.spec.obs_dim :]
        last = self._enter_frame(states, states[:, :1, self.layout.spec.obs_dim :])
        demos = torch.cat([self.previous[nearest][:, :, None], self.actions[nearest, :steps]], dim=2)
        deviation = wrap_circular(last[:, None] - demos[:, :, :1], circular)
        progress = wrap_circular(demos.diff(dim=2), circular).cumsum(2)
        left = (1 - settings.attraction) ** torch.arange(1, steps + 1, device=states.device)[:, None]
        path = last + (weight * (progress + (left - 1) * deviation)).sum(1)
        return self._leave_frame(states, path)

    def _encode(self, states: Tensor) -> Tensor:
        """Return the features of the observations; past actions are not compared."""
        return self.layout.obs_features(states).flatten(-2)

    def _enter_frame(self, states: Tensor, points: Tensor) -> Tensor:
        """Express points (rows, n, 2) in the frame of the object, if there is one."""
        if self.config.object_pose is None:
            return points
        pose = states[:, :1, list(self.config.object_pose)]
        return rotate(points - pose[..., :2], -pose[..., 2])

    def _leave_frame(self, states: Tensor, points: Tensor) -> Tensor:
        """Invert `_enter_frame`."""
        if self.config.object_pose is None:
            return points
        pose = states[:, :1, list(self.config.object_pose)]
        return rotate(points, pose[..., 2]) + pose[..., :2]


def rotate(points: Tensor, angle: Tensor) -> Tensor:
    """Rotate points (..., 2) about the origin by angles (...)."""
    x, y = points.unbind(-1)
    return torch.stack([angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y], dim=-1)
