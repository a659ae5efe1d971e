"""Which methods learn a road that forks? The paper's section "2D Branching Trajectories".

A road runs straight on, then turns 30° left or right: two demonstrations. A good method drives each branch
in half of its paths, turns at the right place, and never leaves the road. This script trains the Neural SDE
and its competitors, scores a thousand paths of each, prints a table and draws two figures.

    python examples/bifurcation.py --smoke    # a tiny run of everything
    python examples/bifurcation.py            # under 20 minutes on one x86-64 core

`neural_sde_minimal.py` explains the method itself, on the same road. `bifurcation_road.py` has the data, the
scores and the figures.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bifurcation_road import GRIDS, SCORES, Field, Pictures, Road, format_table, make_grid, score_paths
from plotting import pyplot
from torch import Tensor, nn
from tqdm import tqdm

from nsde_policy import __version__
from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.batches import TensorRows, Transitions
from nsde_policy.core.networks import MLP
from nsde_policy.core.state import StateLayout, measure_state
from nsde_policy.errors import NsdePolicyError
from nsde_policy.files import check_writable, replace_file
from nsde_policy.methods.base import TrainableModel
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.torch_threads import use_threads
from nsde_policy.training.fit import fit


@dataclass(frozen=True)
class Budget:
    """What every method gets: optimiser steps, paths to generate, and a seed for both."""

    train_steps: int
    paths: int
    seed: int

    def generator(self) -> torch.Generator:
        """Make a fresh generator with this seed."""
        return torch.Generator().manual_seed(self.seed)

    def fit(self, model: Any, data: Any) -> None:
        """Train a model, with the same optimiser for all."""
        config = TrainConfig(
            steps=self.train_steps, batch_size=256, learning_rate=5e-3, weight_decay=1e-4, ema=0.99
        )
        fit(model, data, config, seed=self.seed)

    def start(self, road: Road) -> Tensor:
        """Return the start of the road once per path, (paths, 2)."""
        return road.paths()[0, :1].expand(self.paths, 2)


# --- The Neural SDE: dx = (f + α d) dt + g dw ------------------------------------------------------------

Generated = tuple[Tensor, int]
"""Paths, (points, n, 2), and how often a network was called for each."""
NETWORK = NetworkConfig(kind="separate", width=64, depth=3, dropout=0.0, activation="silu")
"""The MLP of every method; the Neural SDE has three of it."""
NOISE_STD = 0.035
"""σ of the blur in training: much less than the distance between the branches."""
DENOISER_RATE = 2.0
"""α/σ²: the denoiser undoes a blur in about half a unit of time."""
VARIANCE_FLOOR = 0.09
"""Smallest variance of a step, in squared standard deviations of the increments, at density 1.

Times the density, it gives the same g everywhere: increments shrink with Δt, noise with √Δt.
"""
SOLVER_STEP = 0.025
"""Longest solver step; a step longer than the blur would jump over the fork."""
ABLATION = {
    "Flow": (False, False),
    "Flow + Diffusion": (False, True),
    "Flow + Denoiser": (True, False),
    "Flow + Denoiser + Diffusion": (True, True),
}
"""Parts of the equation in use: (denoiser, diffusion). The last is the whole method."""
NEURAL_SDE, COMPLETE = "Neural SDE", "Flow + Denoiser + Diffusion"
NO_FLOOR = {"variance_floor": 1e-6}
PAPER_LOSSES = NO_FLOOR | {
    "flow_loss": "log",  # Eq. 24
    "delta": 1e-3,
    "diffusion_loss": "squared",  # Eq. 20
    "interpolation": "uniform",
}


def pair_states(road: Road) -> Transitions:
    """Return all pairs of consecutive states of the paths."""
    paths = road.paths()
    x, x_next = paths[:-1].flatten(0, 1), paths[1:].flatten(0, 1)
    return Transitions(x, x_next, torch.full_like(x[:, :1], road.dt), torch.ones_like(x))


def train_neural_sde(road: Road, budget: Budget, **changes: Any) -> NeuralSDE:
    """Train the library's model on pairs of consecutive states, without a history.

    Deviation: the square loss. The optimum of the paper's log loss at the fork is one of the branches, so
    the flow itself would be discontinuous there.
    """
    pairs = pair_states(road)
    settings: dict[str, Any] = {
        "history": 1,
        "dt": road.dt,
        "flow_loss": "square",
        "noise": NOISE_STD,
        "noise_kind": "absolute",
        "variance_floor": VARIANCE_FLOOR * road.density,
        "network": NETWORK,
    }
    spec = measure_state(pairs.x, pairs.x_next)
    model = NeuralSDE(NeuralSDEConfig(**settings | changes), spec, generator=budget.generator())
    budget.fit(model, pairs)
    return model


def sample_neural_sde(
    model: NeuralSDE, road: Road, budget: Budget, *, denoiser: bool = True, diffusion: bool = True
) -> Generated:
    """Solve the equation from the start; the three networks count as one call per solver step."""
    sampling = SamplingConfig(
        alpha=DENOISER_RATE * road.dt if denoiser else 0.0,
        diffusion=float(diffusion),
        substeps=math.ceil(road.dt / SOLVER_STEP - 1e-9),
    )
    start, generator = budget.start(road), budget.generator()
    noise = torch.randn(road.steps * sampling.substeps, *start.shape, generator=generator)
    paths = model.sample_paths(start, steps=road.steps, noise=noise, sampling=sampling)
    return paths, road.steps * sampling.substeps


@torch.no_grad()
def evaluate_field(model: NeuralSDE, x: Tensor) -> Field:
    """Evaluate f, α d and g at states (rows, columns, 2)."""
    flow, diffusion, score = model.learned.terms(x)
    return Field(x, flow, DENOISER_RATE * NOISE_STD**2 * score, diffusion)


def generate_with_changes(changes: dict[str, Any], road: Road, budget: Budget) -> Generated:
    """Train a Neural SDE with other settings and sample it."""
    return sample_neural_sde(train_neural_sde(road, budget, **changes), road, budget)


# --- The competitors: DDIM and Rectified Flow turn noise into data in many network calls -----------------


@dataclass(frozen=True)
class Pairs(TensorRows):
    """Conditions (n, m) and targets (n, k) in network units; m may be 0."""

    condition: Tensor
    target: Tensor


class Sampler(TrainableModel[Pairs]):
    """Distribution of a target z given a condition, represented by one network."""

    CALLS: int
    FREQUENCIES = 4

    def __init__(self, condition: int, target: int, network: NetworkConfig, generator: torch.Generator):
        super().__init__()
        self.size = target
        self.network = MLP(condition + target + 2 * self.FREQUENCIES, target, network, generator=generator)

    def predict(self, condition: Tensor, z: Tensor, level: Tensor) -> Tensor:
        """Call the network, which sees the noise level (n, 1) as sines and cosines."""
        phase = level * math.pi * 2.0 ** torch.arange(self.FREQUENCIES, device=level.device)
        return self.network(torch.cat([condition, z, phase.sin(), phase.cos()], dim=-1))

    @torch.inference_mode()
    def sample(self, condition: Tensor, generator: torch.Generator) -> Tensor:
        """Sample one z for each condition, (n, k)."""
        return self.denoise(condition, torch.randn(len(condition), self.size, generator=generator))


class DDIM(Sampler):
    """Denoising diffusion, sampled without noise (Song et al. 2021), with a cosine schedule ᾱ.

    z_t = √ᾱ z + √(1 − ᾱ) ε. The network predicts z, which did better here than predicting ε.
    """

    CALLS = 50
    LEVELS = 100
    ANGLES = (torch.linspace(0, 1, LEVELS + 1) + 0.008) / 1.008 * (math.pi / 2)
    SCHEDULE = (ANGLES.cos() / ANGLES[0].cos()).square().clamp(min=1e-3)

    def loss(self, batch: Pairs, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Compute ‖ẑ(z_t, t) − z‖² at a random level."""
        z = batch.target
        level = torch.randint(1, self.LEVELS + 1, (len(z), 1), generator=generator)
        noise = torch.randn(z.shape, generator=generator)
        signal = self.SCHEDULE[level]
        noisy = signal.sqrt() * z + (1 - signal).sqrt() * noise
        clean = self.predict(batch.condition, noisy, level / self.LEVELS)
        return {"sampler": nn.functional.mse_loss(clean, z)}

    def denoise(self, condition: Tensor, z: Tensor) -> Tensor:
        """Step through evenly spaced levels down to zero."""
        levels = torch.linspace(self.LEVELS, 0, self.CALLS + 1).round().long().tolist()
        for level, next_level in itertools.pairwise(levels):
            signal, next_signal = self.SCHEDULE[level], self.SCHEDULE[next_level]
            clean = self.predict(condition, z, torch.full((len(z), 1), level / self.LEVELS))
            noise = (z - signal.sqrt() * clean) / (1 - signal).sqrt()
            z = next_signal.sqrt() * clean + (1 - next_signal).sqrt() * noise
        return z


class RectifiedFlow(Sampler):
    """Straight lines from noise to data (Liu et al. 2023): z_t = (1 − t) ε + t z, dz/dt = z − ε."""

    CALLS = 20

    def loss(self, batch: Pairs, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Compute ‖v(z_t, t) − (z − ε)‖² at a random time."""
        z = batch.target
        time = torch.rand((len(z), 1), generator=generator)
        noise = torch.randn(z.shape, generator=generator)
        velocity = self.predict(batch.condition, torch.lerp(noise, z, time), time)
        return {"sampler": nn.functional.mse_loss(velocity, z - noise)}

    def denoise(self, condition: Tensor, z: Tensor) -> Tensor:
        """Integrate the flow with Euler steps."""
        for call in range(self.CALLS):
            z = z + self.predict(condition, z, torch.full((len(z), 1), call / self.CALLS)) / self.CALLS
        return z


def train_sampler(kind: type[Sampler], data: Pairs, budget: Budget) -> Sampler:
    """Train a competitor."""
    model = kind(data.condition.shape[1], data.target.shape[1], NETWORK, budget.generator())
    budget.fit(model, data)
    return model


def from_unit_range(z: Tensor, layout: StateLayout) -> Tensor:
    """Invert `StateLayout.features`, which scales states to [-1, 1]."""
    return layout.low + (z + 1) / 2 * (layout.high - layout.low)


def generate_stepwise(kind: type[Sampler], target: str, road: Road, budget: Budget) -> Generated:
    """Sample the next "state", or the "increment" to it, given the current state, step by step."""
    pairs = pair_states(road)
    layout = StateLayout(measure_state(pairs.x, pairs.x_next))
    step = pairs.x_next - pairs.x
    centre, spread = step.mean(0), step.std(0)
    z = layout.features(pairs.x_next) if target == "state" else (step - centre) / spread
    model = train_sampler(kind, Pairs(layout.features(pairs.x), z), budget)
    x, generator = budget.start(road), budget.generator()
    path = [x]
    for _ in range(road.steps):
        z = model.sample(layout.features(x), generator)
        x = from_unit_range(z, layout) if target == "state" else x + centre + spread * z
        path.append(x)
    return torch.stack(path), road.steps * model.CALLS


def generate_whole_paths(road: Road, budget: Budget) -> Generated:
    """Sample 21 states of a path at once, the fork among them, and interpolate linearly in between."""
    pairs = pair_states(road)
    layout = StateLayout(measure_state(pairs.x, pairs.x_next))
    knots = torch.cat([torch.arange(0, road.steps, 5 * road.density), torch.tensor([road.steps])])
    z = layout.features(road.paths()[knots]).transpose(0, 1).flatten(1)
    model = train_sampler(DDIM, Pairs(z[:, :0], z), budget)
    z = model.sample(torch.empty(budget.paths, 0), budget.generator())
    states = from_unit_range(z.reshape(budget.paths, len(knots), 2).transpose(0, 1), layout)
    points = torch.arange(road.steps + 1)
    after = torch.searchsorted(knots, points).clamp(min=1)
    weight = (points - knots[after - 1]) / (knots[after] - knots[after - 1])
    return torch.lerp(states[after - 1], states[after], weight.reshape(-1, 1, 1)), model.CALLS


COMPETITORS: dict[str, Callable[[Road, Budget], Generated]] = {
    "Neural SDE, no variance floor": partial(generate_with_changes, NO_FLOOR),
    "Neural SDE, the paper's losses": partial(generate_with_changes, PAPER_LOSSES),
    "DDIM, next state": partial(generate_stepwise, DDIM, "state"),
    "DDIM, increment": partial(generate_stepwise, DDIM, "increment"),
    "Rectified Flow, next state": partial(generate_stepwise, RectifiedFlow, "state"),
    "Rectified Flow, increment": partial(generate_stepwise, RectifiedFlow, "increment"),
    "DDIM, whole path": generate_whole_paths,
}
METHODS = [NEURAL_SDE, *COMPETITORS]

# --- The experiment: every method at every density, with every seed ---------------------------------------


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; the defaults gave the results in docs/results/other_tasks.md."""

    densities: tuple[int, ...] = (1, 10)
    seeds: tuple[int, ...] = (0, 1, 2)
    paths: int = 1000
    train_steps: int = 3000


def run_experiment(settings: Settings) -> tuple[list[dict[str, Any]], Pictures]:
    """Train, sample and score every method; return all scores and, of the first seed, what figures show."""
    runs: list[dict[str, Any]] = []
    pictures = Pictures()
    jobs = [*itertools.product(settings.densities, METHODS, settings.seeds)]
    for density, method, seed in tqdm(jobs, "bifurcation", unit="model"):
        road, budget = Road(density), Budget(settings.train_steps, settings.paths, seed)
        if method == NEURAL_SDE:
            model = train_neural_sde(road, budget)
            generated = {
                label: sample_neural_sde(model, road, budget, denoiser=denoiser, diffusion=diffusion)
                for label, (denoiser, diffusion) in ABLATION.items()
            }
        else:
            generated = {method: COMPETITORS[method](road, budget)}
        for label, (paths, calls) in generated.items():
            scores = score_paths(paths, road, budget.generator()) | {"network_calls": calls}
            runs.append({"label": label, "density": density, "seed": seed, "scores": scores})
            if seed == settings.seeds[0]:
                pictures.paths[label, density] = paths
        if method == NEURAL_SDE and seed == settings.seeds[0]:
            pictures.paths[method, density] = pictures.paths[COMPLETE, density]
            pictures.fields = {view: evaluate_field(model, make_grid(view)) for view in GRIDS}
    order = [*ABLATION, *METHODS]
    return sorted(runs, key=lambda run: (run["density"], order.index(run["label"]))), pictures


def summarise(runs: list[dict[str, Any]], label: str, density: int) -> dict[str, Any]:
    """Return mean, smallest and largest score over the seeds, and whether every seed meets the bars."""
    name = COMPLETE if label == NEURAL_SDE else label
    seeds = [run["scores"] for run in runs if (run["label"], run["density"]) == (name, density)]
    row: dict[str, Any] = {"label": label, "density": density}
    for score in SCORES:
        values = [scores[score]["value"] for scores in seeds]
        row[score] = {"value": sum(values) / len(values), "low": min(values), "high": max(values)}
    row["network_calls"] = seeds[0]["network_calls"]
    row["bars_met"] = (
        min(row["upper"]["low"], row["lower"]["low"]) >= 0.4
        and max(row["upper"]["high"], row["lower"]["high"]) <= 0.6
        and max(row["off_branch"]["high"], row["fork_error"]["high"]) < 0.02
    )
    return row


def main() -> None:
    """Run the experiment; print the table, write results.json and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="4 training steps and 4 paths at density 1")
    parser.add_argument("--seeds", type=int, default=3, help="number of training seeds, from 0")
    parser.add_argument("--out", type=Path, default=Path("out/bifurcation"), help="directory of the results")
    parser.add_argument("--json", action="store_true", help="print results.json instead of the table")
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error(f"need --seeds >= 1, got {args.seeds}")
    seeds = tuple(range(args.seeds))
    settings = Settings((1,), seeds, paths=4, train_steps=4) if args.smoke else Settings(seeds=seeds)
    try:
        pyplot()  # without matplotlib, fail before the work starts
        check_writable(args.out / "results.json")
        with use_threads(1):  # more would be slower here, and could round differently
            runs, pictures = run_experiment(settings)
        rows = itertools.product(settings.densities, [*METHODS, *ABLATION])
        summary = [summarise(runs, label, density) for density, label in rows]
        results = {"nsde_policy": __version__, "settings": asdict(settings), "summary": summary, "runs": runs}
        content = json.dumps(results, indent=1, allow_nan=False)
        replace_file(args.out / "results.json", content.encode())
        columns = [method for method in METHODS if not method.startswith("Neural SDE, ")]
        pictures.save(summary, columns, ABLATION, args.out)
    except NsdePolicyError as error:
        parser.error(str(error))
    print(content if args.json else format_table(summary))
    print(f"wrote results.json and figures to {args.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
