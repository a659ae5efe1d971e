"""Observed pairs of states → the blurred points where networks are evaluated, and what they should answer."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nsde_policy.errors import DemoError

Interpolation = Literal["none", "uniform"]
NoiseKind = Literal["relative", "absolute"]
HistoryNoise = Literal["independent", "shared", "none"]


@dataclass(frozen=True)
class Transitions:
    """Observed pairs of states; with a history of h states, x is (current, previous, …) side by side."""

    x: Tensor
    """State and its history, newest first, (n, h·d)."""
    x_next: Tensor
    """The state one control period later, (n, d)."""
    dt: Tensor
    """Time between the two, (n, 1)."""
    weight: Tensor
    """How much each dimension of the pair counts, (n, d): 1, or 0 where its successor is not known."""

    def __post_init__(self) -> None:
        n, wide = self.x.shape
        d = self.x_next.shape[-1]
        if self.x_next.shape != (n, d) or wide % d or self.dt.shape != (n, 1) or self.weight.shape != (n, d):
            shapes = [tuple(t.shape) for t in (self.x, self.x_next, self.dt, self.weight)]
            raise DemoError(f"expected x (n, h·d), x_next (n, d), dt (n, 1), weight (n, d), got {shapes}")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> "Transitions":
        return Transitions(*(tensor[index] for tensor in self._tensors()))

    def to(self, device: torch.device | str) -> "Transitions":
        """The same on another device."""
        return Transitions(*(tensor.to(device) for tensor in self._tensors()))

    @classmethod
    def cat(cls, parts: "list[Transitions]") -> "Transitions":
        """All pairs of several episodes."""
        return cls(*(torch.cat(column) for column in zip(*(p._tensors() for p in parts), strict=True)))

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.x, self.x_next, self.dt, self.weight


@dataclass(frozen=True)
class Windows:
    """What was seen lately, and what was commanded from the oldest of it on."""

    states: Tensor
    """States x = (observation, the action before it), newest first, (n, history, d)."""
    actions: Tensor
    """Actions in time, the one commanded in `states[:, 0]` at history − 1, (n, horizon, act_dim)."""

    def __post_init__(self) -> None:
        shapes = tuple(self.states.shape), tuple(self.actions.shape)
        if self.states.dim() != 3 or self.actions.dim() != 3 or len(self.states) != len(self.actions):
            raise DemoError(f"expected states (n, history, d), actions (n, horizon, a), got {shapes}")

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: Tensor) -> "Windows":
        return Windows(self.states[index], self.actions[index])

    def to(self, device: torch.device | str) -> "Windows":
        """The same on another device."""
        return Windows(self.states.to(device), self.actions.to(device))


def stack_history(path: Tensor, history: int) -> Tensor:
    """Put each state of a path (steps, ..., d) beside those before it; (steps, ..., history·d), newest first.

    Before the first state, the first state is repeated: the world stood still.
    """
    padded = torch.cat([path[:1].expand(history - 1, *path.shape[1:]), path])
    return torch.cat([padded[history - 1 - lag : len(padded) - lag] for lag in range(history)], dim=-1)


def transitions(path: Tensor, *, dt: float | Tensor = 1.0, history: int = 1) -> Transitions:
    """Every pair of consecutive states of paths (steps + 1, ..., d) that run side by side.

    `dt` is one number or one per step, (steps,).
    """
    steps, dim = len(path) - 1, path.shape[-1]
    if steps < 1:
        raise DemoError("a path needs two states to hold one transition")
    each = torch.as_tensor(dt, dtype=path.dtype, device=path.device).expand(steps)
    columns = each.reshape(-1, *[1] * (path.dim() - 1)).expand(steps, *path.shape[1:-1], 1)
    x_next = path[1:].reshape(-1, dim)
    return Transitions(
        x=stack_history(path[:-1], history).reshape(-1, history * dim),
        x_next=x_next,
        dt=columns.reshape(-1, 1),
        weight=torch.ones_like(x_next),
    )


@dataclass(frozen=True)
class FlowTarget:
    """A blurred point between two observed states."""

    x: Tensor
    """x̃_τ = x_τ + η, where the networks are evaluated, (batch, d)."""
    velocity: Tensor
    """Δx/Δt, what the flow should answer there, (batch, d)."""
    unit_noise: Tensor
    """η/σ, what the denoiser should undo, (batch, d)."""


def flow_target(
    x: Tensor,
    increment: Tensor,
    dt: Tensor,
    *,
    interpolation: Interpolation,
    noise_std: Tensor,
    unit_noise: Tensor,
    generator: torch.Generator,
) -> FlowTarget:
    """Pick a point on the way from x to x + Δx and blur it (Appendix B); all (batch, d), `dt` (batch, 1).

    **Arguments:**

    - `interpolation`: "none" takes x itself, the point of Eq. 11; "uniform" takes x + τ Δx, τ ~ U[0, 1].
    - `noise_std`: σ of the blur in each dimension, state units, (d,); see `noise_scale`.
    - `unit_noise`: the standard normal numbers it scales, (batch, d); see `draw_noise`.
    - `generator`: where τ comes from.

    Deviation: the paper always interpolates. Where data are truly stochastic x_τ already holds part of the
    increment, and the regression is biased (Ornstein–Uhlenbeck, slope −1: regression finds 0), so "none"
    is offered and is the default. On smooth demonstrations the two agree.
    """
    point = x + noise_std * unit_noise
    if interpolation == "uniform":
        tau = torch.rand((len(x), 1), generator=generator, dtype=x.dtype, device=x.device)
        point = point + tau * increment
    return FlowTarget(x=point, velocity=increment / dt, unit_noise=unit_noise)


def noise_scale(noise: float, kind: NoiseKind, increment_std: Tensor) -> Tensor:
    """σ of the blur in each dimension, state units, (d,).

    "absolute" is the paper's σ² I (Appendix B); "relative" takes `noise` times the spread of each dimension's
    increments.

    Deviation: one σ for all dimensions drowns the slow ones, and is ruinous on Push-T; hence "relative".
    """
    return noise * increment_std if kind == "relative" else torch.full_like(increment_std, noise)


def draw_noise(like: Tensor, *, history: int, kind: HistoryNoise, generator: torch.Generator) -> Tensor:
    """Standard normal numbers for a state (n, d) and its history, newest first, (n, history·d).

    **Arguments:**

    - `kind`: how older states are blurred: "independent" of the newest, so that the denoiser learns a score
      of the whole history; "shared", all moved alike, so that differences between them survive (and the
      denoiser learns the slope along that joint move); or "none".
    """
    width = like.shape[1] * (history if kind == "independent" else 1)
    noise = torch.randn((len(like), width), generator=generator, dtype=like.dtype, device=like.device)
    if kind == "shared":
        return noise.repeat(1, history)
    if kind == "none":
        return torch.cat([noise, *[torch.zeros_like(noise)] * (history - 1)], dim=-1)
    return noise


def blurred(states: Tensor, std: Tensor, generator: torch.Generator) -> Tensor:
    """States (..., d) moved by normal noise of `std` (d,), each of a window on its own.

    Differences within a window are then no longer to be relied on: a policy that reads the next action off
    its own last moves does well on the data and comes to a halt in the world.
    """
    unit = torch.randn(states.shape, generator=generator, dtype=states.dtype, device=states.device)
    return states + std * unit
