"""Methods of the experiment: each learns from the two trajectories and generates paths from their start."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.state import StateLayout, measure_state
from nsde_policy.core.targets import Transitions, pair_states
from nsde_policy.eval.bifurcation.data import Bifurcation
from nsde_policy.eval.bifurcation.samplers import DDIM, ConditionalSampler, Pairs, RectifiedFlow
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.training.loop import fit

NETWORK = NetworkConfig(kind="separate", width=64, depth=3, dropout=0.0, activation="silu")
"""The MLP of every method; the Neural SDE has three of it."""
NOISE_STD = 0.035
"""σ of the Neural SDE's noise injection, state units, the same at both densities."""
DENOISER_RATE = 2.0
"""α/σ², how fast the denoiser leads back to the data, per unit of time, the same at both densities."""
VARIANCE_FLOOR = 0.09
"""Smallest variance of a Neural SDE's step, in squared standard deviations of the increments, at density 1.

Multiplied by the density, which gives the same g everywhere: increments shrink with Δt, noise with √Δt.
"""
SOLVER_STEP = 0.025
"""Longest step of the Neural SDE's solver; a step longer than the injected noise would jump over the fork."""
CALLS = {DDIM: 50, RectifiedFlow: 20}
"""Network calls per sample."""
KNOT_STRIDE = 5
"""A whole path is represented by every fifth state (times the density); the fork is among them."""


@dataclass(frozen=True)
class Budget:
    """Training steps, number of paths and seed, the same for every method."""

    train_steps: int
    """Number of optimiser steps."""
    paths: int
    """Number of paths to generate."""
    seed: int
    """Seed of weights, batches and sampling."""

    @property
    def training(self) -> TrainConfig:
        """Optimiser settings, the same for all methods."""
        return TrainConfig(
            steps=self.train_steps, batch_size=256, learning_rate=5e-3, weight_decay=1e-4, ema=0.99
        )

    def generator(self) -> torch.Generator:
        """Make a fresh generator with this seed."""
        return torch.Generator().manual_seed(self.seed)


class GeneratedPaths(NamedTuple):
    """Output of one method, or one variant of it."""

    paths: Tensor
    """Paths, shape (points, n, 2)."""
    network_calls: int
    """Evaluations of a network per path."""


@dataclass(frozen=True)
class VectorField:
    """The learned equation on a grid of states; every tensor is (rows, columns, 2)."""

    x: Tensor
    flow: Tensor
    """Drift f(x) of the flow."""
    denoiser: Tensor
    """Correction α d(x) by the denoiser."""
    diffusion: Tensor
    """Diffusion coefficient g(x)."""


def train_neural_sde(task: Bifurcation, budget: Budget, **changes: object) -> NeuralSDE:
    """Train the library's model, with the paper's Markov state and three separate networks.

    Deviation: the square loss instead of the log loss, whose optimum at the fork is one of the branches
    rather than their mean, so that the flow itself would be discontinuous there.
    """
    pairs = pair_states(task.trajectories(), dt=task.dt)
    settings: dict[str, Any] = {
        "history": 1,
        "dt": task.dt,
        "flow_loss": "square",
        "noise": NOISE_STD,
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
"""Terms of the equation that are on: (denoiser, diffusion). The last is the complete method."""


def sample_neural_sde(
    model: NeuralSDE, task: Bifurcation, budget: Budget, *, denoiser: bool = True, diffusion: bool = True
) -> GeneratedPaths:
    """Sample paths with some terms of the equation; the three networks count as one call per solver step."""
    sampling = SamplingConfig(
        denoiser="constant" if denoiser else "off",
        alpha=DENOISER_RATE * task.dt,
        diffusion=float(diffusion),
        substeps=math.ceil(task.dt / SOLVER_STEP - 1e-9),
    )
    start = task.trajectories()[0, :1].expand(budget.paths, 2)
    paths = model.sample_paths(start, steps=task.steps, generator=budget.generator(), sampling=sampling)
    return GeneratedPaths(paths, task.steps * sampling.substeps)


@torch.no_grad()
def evaluate_field(model: NeuralSDE, x: Tensor) -> VectorField:
    """Evaluate the learned equation at states (rows, columns, 2)."""
    flow, diffusion, score = model.learned.terms(x)
    return VectorField(x, flow, DENOISER_RATE * NOISE_STD**2 * score, diffusion)


def generate_with_changes(changes: dict[str, Any], task: Bifurcation, budget: Budget) -> GeneratedPaths:
    """Train a Neural SDE with other settings and sample it."""
    return sample_neural_sde(train_neural_sde(task, budget, **changes), task, budget)


def generate_stepwise(
    sampler: type[ConditionalSampler],
    target_kind: Literal["state", "increment"],
    task: Bifurcation,
    budget: Budget,
) -> GeneratedPaths:
    """Sample the next state given the current one, step by step.

    The target is the next state, its range scaled to [-1, 1], or the change of the state, scaled to mean 0
    and standard deviation 1.
    """
    pairs, layout = _load_pairs(task)
    step = pairs.x_next - pairs.x
    centre, spread = step.mean(0), step.std(0)
    target = layout.features(pairs.x_next) if target_kind == "state" else (step - centre) / spread
    model = _train_sampler(sampler, Pairs(layout.features(pairs.x), target), budget)
    generator = budget.generator()
    x = task.trajectories()[0, :1].expand(budget.paths, 2)
    path = [x]
    with torch.inference_mode():
        for _ in range(task.steps):
            z = model.sample(layout.features(x), generator)
            x = _from_unit_range(z, layout) if target_kind == "state" else x + centre + spread * z
            path.append(x)
    return GeneratedPaths(torch.stack(path), task.steps * model.calls)


def generate_whole_paths(task: Bifurcation, budget: Budget) -> GeneratedPaths:
    """Sample each path at once with DDIM, a strong baseline.

    A path is represented by 21 of its states, the fork and the end among them, each coordinate scaled to
    [-1, 1], and interpolated linearly in between.
    """
    truth, (_, layout) = task.trajectories(), _load_pairs(task)
    indices = torch.cat([torch.arange(0, task.steps, KNOT_STRIDE * task.density), torch.tensor([task.steps])])
    targets = layout.features(truth[indices]).transpose(0, 1).flatten(1)
    model = _train_sampler(DDIM, Pairs(targets[:, :0], targets), budget)
    with torch.inference_mode():
        z = model.sample(torch.empty(budget.paths, 0), budget.generator())
    knots = z.reshape(budget.paths, len(indices), 2).transpose(0, 1)
    return GeneratedPaths(interpolate_paths(_from_unit_range(knots, layout), indices), model.calls)


def interpolate_paths(knots: Tensor, indices: Tensor) -> Tensor:
    """Interpolate states (k, n, 2) at increasing points `indices` (k,) linearly; (last index + 1, n, 2)."""
    points = torch.arange(int(indices[-1]) + 1)
    after = torch.searchsorted(indices, points).clamp(min=1)
    start, end = indices[after - 1], indices[after]
    weight = ((points - start) / (end - start)).reshape(-1, 1, 1)
    return torch.lerp(knots[after - 1], knots[after], weight)


def _load_pairs(task: Bifurcation) -> tuple[Transitions, StateLayout]:
    pairs = pair_states(task.trajectories(), dt=task.dt)
    return pairs, StateLayout(measure_state(pairs.x, pairs.x_next))


def _from_unit_range(unit: Tensor, layout: StateLayout) -> Tensor:
    """Invert `StateLayout.features`: from [-1, 1] to state units."""
    return layout.low + (unit + 1) / 2 * (layout.high - layout.low)


def _train_sampler(sampler: type[ConditionalSampler], pairs: Pairs, budget: Budget) -> ConditionalSampler:
    sizes = pairs.condition.shape[1], pairs.target.shape[1]
    model = sampler(*sizes, NETWORK, calls=CALLS[sampler], generator=budget.generator())
    fit(model, pairs, budget.training, seed=budget.seed)
    return model


NO_FLOOR = {"variance_floor": 1e-6}
PAPER_LOSSES = {
    "flow_loss": "log",
    "delta": 1e-3,
    "diffusion_loss": "squared",
    "interpolation": "uniform",
    **NO_FLOOR,
}
"""The paper's own objectives (Eq. 24 with its δ, Eq. 20) and its interpolation."""
NEURAL_SDE = "Neural SDE"
BASELINES: dict[str, Callable[[Bifurcation, Budget], GeneratedPaths]] = {
    "Neural SDE, no variance floor": partial(generate_with_changes, NO_FLOOR),
    "Neural SDE, the paper's losses": partial(generate_with_changes, PAPER_LOSSES),
    "DDIM, next state": partial(generate_stepwise, DDIM, "state"),
    "DDIM, increment": partial(generate_stepwise, DDIM, "increment"),
    "Rectified Flow, next state": partial(generate_stepwise, RectifiedFlow, "state"),
    "Rectified Flow, increment": partial(generate_stepwise, RectifiedFlow, "increment"),
    "DDIM, whole path": generate_whole_paths,
}
METHOD_NAMES = (NEURAL_SDE, *BASELINES)
