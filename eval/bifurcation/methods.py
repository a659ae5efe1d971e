"""The methods compared: each learns from the two trajectories and generates paths from their common start."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.state import StateLayout, measure_state
from nsde_policy.core.targets import pair_states
from nsde_policy.eval.bifurcation.data import Bifurcation
from nsde_policy.eval.bifurcation.samplers import DDIM, ConditionalSampler, Pairs, RectifiedFlow
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.training.loop import fit

NETWORK = NetworkConfig(kind="separate", width=64, depth=3, dropout=0.0, activation="silu")
"""The MLP of every method; the Neural SDE has three of it."""
BLUR = 0.035
"""σ of the Neural SDE's noise injection, state units, the same at both densities."""
PULL = 2.0
"""α/σ², how fast the denoiser leads back to the data, per unit of time, the same at both densities."""
VARIANCE_FLOOR = 0.09
"""Smallest variance of a Neural SDE's step, in squared standard deviations of the increments, at density 1.

Times the density at others, which is the same g everywhere: increments shrink with Δt, noise with √Δt.
"""
SOLVER_STEP = 0.025
"""Longest step of the Neural SDE's solver: shorter than the blur, or it jumps over the fork undecided."""
CALLS = {"ddim": 50, "flow": 20}
"""Network calls of one sampling."""
KNOT_STRIDE = 5
"""A whole path is described by one state in so many (times the density); the fork is among them."""


@dataclass(frozen=True)
class Budget:
    """What every method may spend."""

    train_steps: int
    """Optimiser steps."""
    paths: int
    """Paths to generate."""
    seed: int
    """Of weights, batches and sampling."""

    @property
    def training(self) -> TrainConfig:
        """The same optimiser for all."""
        return TrainConfig(
            steps=self.train_steps, batch_size=256, learning_rate=5e-3, weight_decay=1e-4, ema=0.99
        )

    def generator(self) -> torch.Generator:
        """A fresh generator of this seed."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True)
class Generated:
    """What one method, or one variant of it, generated."""

    paths: Tensor
    """(points, n, 2)."""
    network_calls: int
    """Evaluations of a network per path."""


@dataclass(frozen=True)
class Field:
    """The learned equation on a grid of states."""

    x: Tensor
    """States, (rows, columns, 2)."""
    flow: Tensor
    """f(x), (rows, columns, 2)."""
    pull: Tensor
    """α d(x), (rows, columns, 2)."""
    diffusion: Tensor
    """g(x), (rows, columns, 2)."""


NO_FLOOR = {"variance_floor": 1e-6}
"""Let the learned diffusion be as small as it likes."""
PAPER_LOSSES = {
    "flow_loss": "log",
    "delta": 1e-3,
    "diffusion_loss": "squared",
    "interpolation": "uniform",
    **NO_FLOOR,
}
"""The paper's own objectives (Eq. 24 with its δ, Eq. 20) and its interpolation."""


def train_neural_sde(task: Bifurcation, budget: Budget, **changes: Any) -> NeuralSDE:
    """The library's model, with the paper's Markov state and three separate networks.

    Deviation: the square loss instead of the log loss, whose optimum at the fork is one of the branches
    rather than their mean, so that the flow itself would be torn there.
    """
    pairs = pair_states(task.trajectories(), dt=task.dt)
    settings: dict[str, Any] = {
        "history": 1,
        "dt": task.dt,
        "flow_loss": "square",
        "noise": BLUR,
        "noise_kind": "absolute",
        "variance_floor": VARIANCE_FLOOR * task.density,
        "network": NETWORK,
    }
    config = NeuralSDEConfig(**{**settings, **changes})
    model = NeuralSDE(config, measure_state(pairs.x, pairs.x_next), generator=budget.generator())
    fit(model, pairs, budget.training, seed=budget.seed)
    return model


ABLATION: Mapping[str, tuple[bool, bool]] = {
    "Flow": (False, False),
    "Flow + Diffusion": (False, True),
    "Flow + Denoiser": (True, False),
    "Flow + Denoiser + Diffusion": (True, True),
}
"""Parts of the equation that are on: (denoiser, diffusion). The last is the whole method."""


def sample_neural_sde(
    model: NeuralSDE, task: Bifurcation, budget: Budget, *, denoiser: bool, diffusion: bool
) -> Generated:
    """Paths of the equation with some of its parts; the three networks count as one call per solver step."""
    sampling = SamplingConfig(
        denoiser="constant" if denoiser else "off",
        alpha=PULL * task.dt,
        diffusion=float(diffusion),
        substeps=math.ceil(task.dt / SOLVER_STEP - 1e-9),
    )
    start = task.trajectories()[0, :1].expand(budget.paths, 2)
    paths = model.sample_paths(start, steps=task.steps, generator=budget.generator(), sampling=sampling)
    return Generated(paths, task.steps * sampling.substeps)


def neural_sde_with(changes: dict[str, Any], task: Bifurcation, budget: Budget) -> Generated:
    """The whole method with other settings, trained and sampled."""
    model = train_neural_sde(task, budget, **changes)
    return sample_neural_sde(model, task, budget, denoiser=True, diffusion=True)


@torch.no_grad()
def field(model: NeuralSDE, x: Tensor) -> Field:
    """The learned equation at states (rows, columns, 2)."""
    flow, diffusion, score = model.learned.terms(x)
    return Field(x, flow, PULL * BLUR**2 * score, diffusion)


Kind = Literal["ddim", "flow"]
Code = Literal["state", "increment"]
SAMPLERS: Mapping[Kind, type[ConditionalSampler]] = {"ddim": DDIM, "flow": RectifiedFlow}


def per_step(kind: Kind, code: Code, task: Bifurcation, budget: Budget) -> Generated:
    """One sampling of the next state per step, given the current one.

    With code "state" the target is the next state itself, its range scaled to [-1, 1]; with "increment" it
    is the step there, shifted and scaled to mean 0 and standard deviation 1.
    """
    pairs, layout = pair_states(task.trajectories(), dt=task.dt), _layout(task)
    step = pairs.x_next - pairs.x
    centre, spread = step.mean(0), step.std(0)
    seen = layout.features(pairs.x)
    target = layout.features(pairs.x_next) if code == "state" else (step - centre) / spread
    model = _fitted(kind, Pairs(seen, target), budget)
    generator = budget.generator()
    x = task.trajectories()[0, :1].expand(budget.paths, 2)
    path = [x]
    with torch.inference_mode():
        for _ in range(task.steps):
            z = model.sample(layout.features(x), generator)
            x = _from_unit(z, layout) if code == "state" else x + centre + spread * z
            path.append(x)
    return Generated(torch.stack(path), task.steps * model.calls)


def whole_path(task: Bifurcation, budget: Budget) -> Generated:
    """The sceptic's baseline: one DDIM sampling of the whole path.

    A path is described by 21 of its states, the fork and the end among them, each coordinate scaled to
    [-1, 1], and interpolated linearly in between.
    """
    truth = task.trajectories()
    indices = torch.cat([torch.arange(0, task.steps, KNOT_STRIDE * task.density), torch.tensor([task.steps])])
    layout = _layout(task)
    described = layout.features(truth[indices]).transpose(0, 1).flatten(1)
    model = _fitted("ddim", Pairs(described[:, :0], described), budget)
    with torch.inference_mode():
        z = model.sample(torch.empty(budget.paths, 0), budget.generator())
    unit = z.reshape(budget.paths, len(indices), 2).transpose(0, 1)
    return Generated(_interpolate(_from_unit(unit, layout), indices), model.calls)


def _layout(task: Bifurcation) -> StateLayout:
    """Ranges of the states, by which they are scaled for the samplers."""
    pairs = pair_states(task.trajectories(), dt=task.dt)
    return StateLayout(measure_state(pairs.x, pairs.x_next))


def _from_unit(unit: Tensor, layout: StateLayout) -> Tensor:
    """The inverse of `StateLayout.features`: from [-1, 1] to state units."""
    return layout.low + (unit + 1) / 2 * (layout.high - layout.low)


def _interpolate(knots: Tensor, indices: Tensor) -> Tensor:
    """Straight lines through states (k, n, 2) at increasing points `indices` (k,); (last index + 1, n, 2)."""
    points = torch.arange(int(indices[-1]) + 1)
    after = torch.searchsorted(indices, points).clamp(min=1)
    start, end = indices[after - 1], indices[after]
    weight = ((points - start) / (end - start)).reshape(-1, 1, 1)
    return torch.lerp(knots[after - 1], knots[after], weight)


def _fitted(kind: Kind, pairs: Pairs, budget: Budget) -> ConditionalSampler:
    model = SAMPLERS[kind](
        pairs.condition.shape[1],
        pairs.target.shape[1],
        NETWORK,
        calls=CALLS[kind],
        generator=budget.generator(),
    )
    fit(model, pairs, budget.training, seed=budget.seed)
    return model
