"""Implicit behavioural cloning (Florence et al. 2021, arXiv 2109.00137): an energy E(o, a).

The energy is trained with InfoNCE to separate the demonstrated action from other actions, so that −E is the
log density up to a constant that depends on the observation. Actions of low energy are found by
derivative-free search. The network is that of Diffusion Policy's low-dimensional baseline. Actions are in
half ranges.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from nsde_policy.bounds import Fraction, Length, Positive, Size
from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig
from nsde_policy.core.batches import Windows
from nsde_policy.core.networks import Dropout, linear
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout

from ..base import BatchRng, PolicyModel, choose_sampling
from ..registry import register_method

ACTION_NOISE = 1e-4
"""Standard deviation of the noise on demonstrated actions, in half ranges."""
Energy = Callable[[Tensor], Tensor]
"""Energies (rows, n) of candidate actions (rows, n, a)."""


@dataclass(frozen=True)
class ImplicitBCSampling(Sampling):
    """Settings of the search for actions of low energy."""

    samples: Size = 1024
    """Candidates per state."""
    iterations: Size = 5
    """Evaluations of all candidates."""
    noise: Positive = 0.1
    """Standard deviation of the first perturbation, in half ranges."""
    shrink: Positive = 0.5
    """Factor on `noise` after each iteration."""
    answer: Literal["sample", "best"] = "sample"
    """Sample one of the last candidates by energy, or take the one of lowest energy."""


@dataclass(frozen=True)
class ImplicitBCConfig(WindowConfig):
    """Settings of implicit behavioural cloning."""

    horizon: Length = 2
    """Actions of a window (T_p), counted from the oldest state; the future ones form one candidate."""
    negatives: Size = 256
    """Negative actions per demonstrated one, uniform over the demonstrated range."""
    width: Size = 1024
    """Units per hidden layer."""
    depth: Size = 4
    """Number of hidden layers."""
    dropout: Fraction = 0.1
    """Dropout probability in training."""
    sampling: ImplicitBCSampling = field(default_factory=ImplicitBCSampling)
    """Default settings of the search."""


class EnergyNetwork(nn.Module):
    """Linear layers and ReLUs over an observation and each of many actions.

    Deviation: the part that does not depend on the action is computed once, and all actions of an observation
    share one dropout mask, so that they are compared by the same network.
    """

    def __init__(
        self, obs_size: int, action_size: int, config: ImplicitBCConfig, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.width, self.dropout = config.width, Dropout(config.dropout)
        self.observation = linear(obs_size, config.width, generator)
        self.action = linear(action_size, config.width, generator)
        hidden = (linear(config.width, config.width, generator) for _ in range(config.depth - 1))
        self.hidden = nn.ModuleList(hidden)
        self.output = linear(config.width, 1, generator)

    def forward(self, obs: Tensor, actions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return energies (rows, n) of actions (rows, n, a) for observations `obs` (rows, s)."""
        with torch.autocast(actions.device.type, enabled=False):
            h = self.observation(obs)[:, None] + self.action(actions)
        layers = [nn.Identity(), *self.hidden]
        masks = self.dropout.sample_mask((len(layers), len(obs), 1, self.width), obs, generator)
        for i, layer in enumerate(layers):
            h = layer(h).relu()
            h = h if masks is None else h * masks[i].to(h.dtype)
        with torch.autocast(actions.device.type, enabled=False):
            energy: Tensor = self.output(h.float())[..., 0]
        return energy


def info_nce(energy: Tensor) -> Tensor:
    """Return the mean −log softmax(−E) of the first, demonstrated candidate of (rows, n + 1)."""
    return (energy[:, 0] + torch.logsumexp(-energy, dim=-1)).mean()


def resample(energy: Tensor, uniform: Tensor) -> Tensor:
    """Sample indices (rows, m) of candidates with replacement, with probability ∝ e^(−E), E (rows, n).

    `uniform` numbers (rows, m) in [0, 1) select from the cumulative sum, so that rows are independent.
    """
    cumulative = torch.softmax(-energy, dim=-1).cumsum(-1)
    index = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return index.clamp(max=energy.shape[-1] - 1)


def search_derivative_free(
    energy: Energy, candidates: Tensor, noise: Tensor, uniform: Tensor, *, spread: float, shrink: float
) -> Tensor:
    """Find candidates (rows, n, a) of low energy (Algorithm 1): resample, perturb, shrink the noise.

    `noise` (rows, iterations, n, a) is normal, `uniform` (rows, iterations, n) in [0, 1).
    """
    for i in range(noise.shape[1]):
        resampled = _select(candidates, resample(energy(candidates), uniform[:, i]))
        candidates = (resampled + spread * noise[:, i]).clamp(-1, 1)
        spread *= shrink
    return candidates


def _select(candidates: Tensor, index: Tensor) -> Tensor:
    """Select candidates (rows, n, a) by indices (rows, m)."""
    return candidates.gather(1, index[..., None].expand(-1, -1, candidates.shape[-1]))


_TRAIN = TrainConfig(
    steps=40_000,
    batch_size=256,
    learning_rate=3e-4,
    warmup=0.01,
    weight_decay=1e-6,
    betas=(0.95, 0.999),
    precision="bf16",
)

PRESETS = {
    "default": Preset(ImplicitBCConfig(), _TRAIN, chunk=1),
    "fast": Preset(
        ImplicitBCConfig(negatives=64, width=128, sampling=ImplicitBCSampling(samples=512)),
        TrainConfig(steps=10_000, batch_size=64),
        chunk=1,
    ),
}


@register_method("ibc", title="Implicit BC", config=ImplicitBCConfig, presets=PRESETS)
class ImplicitBC(PolicyModel[Windows]):
    """argmin of E(o, a) over a, or a sample of e^(−E), where o holds no past actions."""

    def __init__(self, config: ImplicitBCConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: ImplicitBCConfig = config
        self.layout = StateLayout(spec)
        obs_size = config.history * self.layout.obs_feature_dim
        self.network = EnergyNetwork(
            obs_size, config.longest_chunk * spec.act_dim, config, generator=generator
        )

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return InfoNCE against uniform negatives."""
        config = self.config
        done = self.layout.to_unit(batch.actions[:, config.history - 1 :]).flatten(-2)
        rows, size = done.shape
        normal = torch.randn(done.shape, generator=generator, device=done.device)
        done = (done + ACTION_NOISE * normal)[:, None]
        uniform = torch.rand((rows, config.negatives, size), generator=generator, device=done.device)
        candidates = torch.cat([done, 2 * uniform - 1], dim=1)
        energy = self.network(self._encode(batch.states), candidates, generator)
        return {"info_nce": info_nce(energy)}

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Start from uniform candidates, move them to low energies and return one."""
        settings, obs = choose_sampling(self.config.sampling, sampling), self._encode(states)
        act_dim, n = self.layout.spec.act_dim, settings.samples
        size, moves = self.config.longest_chunk * act_dim, settings.iterations - 1
        uniform = rng.uniform(n * (size + moves) + 1)
        noise = rng.normal(moves, n, size)
        candidates = 2 * uniform[:, : n * size].reshape(len(states), n, size) - 1
        picks = uniform[:, n * size : -1].reshape(len(states), moves, n)
        energy: Energy = partial(self.network, obs)
        candidates = search_derivative_free(
            energy, candidates, noise, picks, spread=settings.noise, shrink=settings.shrink
        )
        last = energy(candidates)
        best = last.argmin(-1, keepdim=True)
        index = best if settings.answer == "best" else resample(last, uniform[:, -1:])
        actions = _select(candidates, index).reshape(len(states), -1, act_dim)
        return self.layout.from_unit(actions[:, :steps])

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Return one call per iteration, for all candidates."""
        return choose_sampling(self.config.sampling, sampling).iterations

    def _encode(self, states: Tensor) -> Tensor:
        return self.layout.obs_features(states).flatten(-2)
