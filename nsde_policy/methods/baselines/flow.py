"""Streaming Flow Policy (Jiang et al. 2025, arXiv 2505.21851): actions follow a learned flow.

A velocity field v(a, t | states) moves the action from the last one sent through the following ones. It is
trained on the stabilised flow around each demonstrated trajectory ξ, whose marginals are
a(t) ~ N(ξ(t), σ₀² e^(−2kt)) and whose velocity is ξ'(t) − k (a − ξ(t)). Actions can therefore be sent while
others are still being computed, and deviations decay. The trunk is that of the Neural SDE.

Units: actions in half their range; time t in [0, 1] over all the actions from the present on.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from nsde_policy.bounds import Length, NonNegative, Positive, Size
from nsde_policy.config import Sampling
from nsde_policy.core.batches import Windows
from nsde_policy.core.networks import MLP
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout

from ..base import BatchRng, ChunkConfig, PolicyModel, choose_sampling
from ..registry import register_method

TIME_OCTAVES = 4
"""Number of sinusoidal time features, each twice as fast as the one before."""


@dataclass(frozen=True)
class StreamingFlowSampling(Sampling):
    """Solver settings of a trained flow."""

    substeps: Size = 1
    """Solver steps, and network calls, per policy period."""
    start: NonNegative = 0.0
    """Standard deviation of the first point around the last action, in units of `noise`."""


@dataclass(frozen=True)
class StreamingFlowConfig(ChunkConfig):
    """Settings of Streaming Flow Policy."""

    tunable = ("noise", "network.width")

    horizon: Length = 16
    """Actions of a trajectory (T_p), counted from the oldest state in the input."""
    noise: Positive = 0.1
    """σ₀: standard deviation of the trained flow at t = 0, in half ranges of the actions."""
    gain: NonNegative = 2.5
    """k: rate at which the flow converges to the trajectory, per its whole length."""
    sampling: StreamingFlowSampling = field(default_factory=StreamingFlowSampling)
    """Default solver settings."""


class FlowPoint(NamedTuple):
    """Position and velocity of a flow at one time."""

    position: Tensor
    velocity: Tensor


def interpolate_trajectory(knots: Tensor, time: Tensor) -> FlowPoint:
    """Return ξ(t), ξ'(t) of lines through knots (n, N + 1, a), evenly spaced in [0, 1]; time (n, 1)."""
    pieces = knots.shape[1] - 1
    scaled = time * pieces
    piece = scaled.floor().clamp(0, pieces - 1)
    index = piece.long()[..., None].expand(-1, -1, knots.shape[-1])
    left, right = knots.gather(1, index)[:, 0], knots.gather(1, index + 1)[:, 0]
    return FlowPoint(torch.lerp(left, right, scaled - piece), (right - left) * pieces)


def stabilise_velocity(at: FlowPoint, action: Tensor, gain: float) -> Tensor:
    """Return ξ'(t) − k (a − ξ(t)): along the trajectory and towards it."""
    return at.velocity - gain * (action - at.position)


PRESETS = StreamingFlowConfig().make_presets()


@register_method("flow", title="Streaming flow", config=StreamingFlowConfig, presets=PRESETS)
class StreamingFlow(PolicyModel[Windows]):
    """da/dt = v(a, t | states), integrated from the last action."""

    waves: Tensor

    def __init__(self, config: StreamingFlowConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: StreamingFlowConfig = config
        self.layout = StateLayout(spec)
        self.register_buffer("waves", math.pi * 2.0 ** torch.arange(TIME_OCTAVES))
        inputs = config.history * self.layout.feature_dim + spec.act_dim + 1 + 2 * TIME_OCTAVES
        self.network = MLP(inputs, spec.act_dim, config.network, generator=generator)

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the mean square error of the velocity at one point per window, sampled from the marginal."""
        future = batch.actions[:, self.config.history - 1 :]
        knots = self.layout.to_unit(torch.cat([self._last_action(batch.states), future], dim=1))
        time = torch.rand((len(knots), 1), generator=generator, device=knots.device)
        at = interpolate_trajectory(knots, time)
        spread = self.config.noise * (-self.config.gain * time).exp()
        noise = torch.randn(at.position.shape, generator=generator, device=knots.device)
        action = at.position + spread * noise
        target = stabilise_velocity(at, action, self.config.gain)
        velocity = self._velocity(self._encode(batch.states), action, time, generator)
        return {"velocity": (velocity.float() - target).square().mean()}

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Integrate the flow, one action per policy period.

        Deviation: at every action two straight pieces of ξ meet and the network outputs the mean of their
        velocities, which is where Euler steps of one period evaluate it. Here the velocity is evaluated in
        the middle of a step, v̄ = v(a + v̄ Δt/2, t + Δt/2), solved with ∂v/∂a = −k of the flow around one
        trajectory. It is exact on trajectories and needs the same single call. The first point is the last
        action itself, as in the authors' code; `start` = 1 samples it as in the paper.
        """
        settings = choose_sampling(self.config.sampling, sampling)
        features = self._encode(states)
        action = self.layout.to_unit(self._last_action(states))[:, 0]
        action = action + settings.start * self.config.noise * rng.normal(action.shape[-1])
        dt = 1 / (self.config.longest_chunk * settings.substeps)
        step = dt / (1 + 0.5 * self.config.gain * dt)
        path = []
        for i in range(steps * settings.substeps):
            time = torch.full_like(action[:, :1], (i + 0.5) * dt)
            action = action + step * self._velocity(features, action, time)
            path.append(action)
        return self.layout.from_unit(torch.stack(path[settings.substeps - 1 :: settings.substeps], dim=1))

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Return one call per solver step; the first action is ready after `substeps` calls."""
        return steps * choose_sampling(self.config.sampling, sampling).substeps

    def _last_action(self, states: Tensor) -> Tensor:
        """Return the last action, ξ(0), (n, 1, a)."""
        return states[:, :1, self.layout.spec.obs_dim :]

    def _encode(self, states: Tensor) -> Tensor:
        return self.layout.features(states).flatten(-2)

    def _velocity(
        self, features: Tensor, action: Tensor, time: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        phase = time * self.waves
        inputs = torch.cat([features, action, 2 * time - 1, phase.sin(), phase.cos()], dim=-1)
        velocity: Tensor = self.network(inputs, generator)
        return velocity
