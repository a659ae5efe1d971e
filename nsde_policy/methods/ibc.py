"""Implicit behavioural cloning (Florence et al. 2021, arXiv 2109.00137): an energy E(o, a).

The energy is trained by InfoNCE to tell the demonstrated action from others, so that −E is, up to a constant
of the observation, the log of its density; actions are then searched for, without derivatives or by Langevin
dynamics. The network is that of Diffusion Policy's low-dimensional baseline. Actions are in half ranges.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.networks import dropout_mask, linear
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.base import Draws, LossParts, PolicyModel, Stage, choose_sampling
from nsde_policy.methods.registry import register_method

Energy = Callable[[Tensor], Tensor]
"""Energies (rows, n) of candidate actions (rows, n, a)."""


@dataclass(frozen=True)
class ImplicitBCSampling(Sampling):
    """How actions of low energy are found."""

    inference: Literal["derivative_free", "langevin"] = "derivative_free"
    """Resample and perturb, or follow the gradient with noise."""
    samples: int = 1024
    """Candidates per state."""
    iterations: int = 5
    """Times all candidates are looked at; Langevin dynamics wants fifty or more."""
    noise: float = 0.1
    """Derivative-free: spread of the first perturbation, in half ranges."""
    shrink: float = 0.5
    """Derivative-free: factor on that spread after each iteration."""
    step: float = 0.01
    """Langevin: first step size; falls to a hundredth of it."""
    answer: Literal["sample", "best"] = "sample"
    """Draw one of the last candidates by its energy, or take the lowest."""

    def __post_init__(self) -> None:
        for name in ("samples", "iterations"):
            require(self, getattr(self, name) >= 1, f"need {name} >= 1, got {getattr(self, name)}")
        for name in ("noise", "shrink", "step"):
            require(self, 0 < getattr(self, name) < math.inf, f"need {name} > 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class ImplicitBCConfig(WindowConfig):
    """Implicit behavioural cloning."""

    horizon: int = 2
    """Actions of a window (T_p), counted from the oldest state; those from now on are one candidate."""
    negatives: int = 256
    """Other actions that each demonstrated one is told from, uniform over the range of the demonstrations."""
    local_negatives: int = 0
    """As many more from the neighbourhood of the demonstrated one; sharpens the energy."""
    local_noise: float = 0.1
    """Size of that neighbourhood, in half ranges of the actions."""
    blur: float = 1e-4
    """Noise on the demonstrated actions, in half ranges."""
    width: int = 1024
    """Units per hidden layer."""
    depth: int = 4
    """Hidden layers."""
    dropout: float = 0.1
    """Fraction of hidden units left out in training."""
    sampling: ImplicitBCSampling = field(default_factory=ImplicitBCSampling)
    """How actions are found, unless said otherwise when they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("negatives", "width", "depth"):
            require(self, getattr(self, name) >= 1, f"need {name} >= 1, got {getattr(self, name)}")
        require(self, self.local_negatives >= 0, f"need local_negatives >= 0, got {self.local_negatives}")
        require(self, 0 < self.local_noise < math.inf, f"need local_noise > 0, got {self.local_noise}")
        require(self, 0 <= self.blur < math.inf, f"need blur >= 0, got {self.blur}")
        require(self, 0 <= self.dropout < 1, f"need 0 <= dropout < 1, got {self.dropout}")


class EnergyNetwork(nn.Module):
    """Linear layers and ReLUs over an observation and each of many actions.

    Deviation: what does not depend on the action is computed once, and one dropout mask serves all actions
    compared for an observation: they are judged by the same network, and the masks cost next to nothing.
    """

    def __init__(
        self, seen: int, acted: int, config: ImplicitBCConfig, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.width, self.keep = config.width, 1 - config.dropout
        self.observation = linear(seen, config.width, generator)
        self.action = linear(acted, config.width, generator)
        hidden = (linear(config.width, config.width, generator) for _ in range(config.depth - 1))
        self.hidden = nn.ModuleList(hidden)
        self.output = linear(config.width, 1, generator)

    def forward(self, seen: Tensor, actions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Energies (rows, n) of actions (rows, n, a) where `seen` (rows, s) is seen; float32 at both ends."""
        with torch.autocast(actions.device.type, enabled=False):
            h = self.observation(seen)[:, None] + self.action(actions)
        layers = [nn.Identity(), *self.hidden]
        for layer, mask in zip(layers, self._masks(seen, generator), strict=True):
            h = layer(h).relu()
            h = h if mask is None else h * mask.to(h.dtype)
        with torch.autocast(actions.device.type, enabled=False):
            energy: Tensor = self.output(h.float())[..., 0]
        return energy

    def _masks(self, seen: Tensor, generator: torch.Generator | None) -> Sequence[Tensor | None]:
        """One factor per layer, (rows, 1, width); None outside training."""
        layers = len(self.hidden) + 1
        if not self.training or self.keep == 1:
            return [None] * layers
        if generator is None:
            raise ConfigError("dropout in training needs a generator to draw from")
        shape = (layers, len(seen), 1, self.width)
        return dropout_mask(shape, self.keep, seen, generator).unbind()


def info_nce(energy: Tensor) -> Tensor:
    """−log softmax(−E) of the first candidate, the demonstrated one; the mean over rows of (rows, n + 1)."""
    return (energy[:, 0] + torch.logsumexp(-energy, dim=-1)).mean()


def resample(energy: Tensor, uniform: Tensor) -> Tensor:
    """Indices (rows, m) of candidates drawn with replacement, with probability ∝ e^(−E), E (rows, n).

    `uniform` numbers (rows, m) in [0, 1) pick from the cumulative sum: a row depends on that row alone.
    """
    cumulative = torch.softmax(-energy, dim=-1).cumsum(-1)
    index = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return index.clamp(max=energy.shape[-1] - 1)


def derivative_free(
    energy: Energy, candidates: Tensor, noise: Tensor, uniform: Tensor, *, spread: float, shrink: float
) -> Tensor:
    """Candidates (rows, n, a) of low energy (Algorithm 1): resample by energy, perturb less and less.

    `noise` (rows, iterations, n, a) is normal, `uniform` (rows, iterations, n) in [0, 1).
    """
    for i in range(noise.shape[1]):
        chosen = _pick(candidates, resample(energy(candidates), uniform[:, i]))
        candidates = (chosen + spread * noise[:, i]).clamp(-1, 1)
        spread *= shrink
    return candidates


def langevin(energy: Energy, candidates: Tensor, noise: Tensor, steps: list[float]) -> Tensor:
    """A ← a − η/2 ∇E(a) + √η z in [-1, 1], for each step size η: in the end, samples of e^(−E).

    `noise` (rows, iterations, n, a) is normal. The chains are independent, so one gradient serves all.

    Deviation: the original adds η z instead of √η z, which samples a colder law than that of the energy.
    """
    for i, size in enumerate(steps):
        with torch.enable_grad():
            at = candidates.detach().requires_grad_()
            (slope,) = torch.autograd.grad(energy(at).sum(), at)
        moved = candidates - 0.5 * size * slope + math.sqrt(size) * noise[:, i]
        candidates = moved.clamp(-1, 1)
    return candidates


def _pick(candidates: Tensor, index: Tensor) -> Tensor:
    """Candidates (rows, n, a) by indices (rows, m)."""
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
    "local": Preset(ImplicitBCConfig(negatives=192, local_negatives=64), _TRAIN, chunk=1),
    "fast": Preset(
        ImplicitBCConfig(negatives=64, width=128, sampling=ImplicitBCSampling(samples=512)),
        TrainConfig(steps=10_000, batch_size=64),
        chunk=1,
    ),
}


@register_method("ibc", title="Implicit BC", config=ImplicitBCConfig, presets=PRESETS)
class ImplicitBC(PolicyModel[Windows]):
    """argmin of E(o, a) over a, or a sample of e^(−E); o is the observations seen, without past actions."""

    def __init__(self, config: ImplicitBCConfig, layout: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: ImplicitBCConfig = config
        self.layout = StateLayout(layout)
        seen = config.history * self.layout.obs_feature_dim
        self.network = EnergyNetwork(seen, config.longest_chunk * layout.act_dim, config, generator=generator)

    def loss(self, batch: Windows, generator: torch.Generator) -> LossParts:
        """InfoNCE against uniform actions, and apart from it against local ones.

        Local ones are drawn around a point that is itself drawn around the demonstrated action, with one
        spread: given that point, nothing but their density tells the demonstrated action from the others, so
        that both losses want the same energy.
        """
        config = self.config
        done = self.layout.to_unit(batch.actions[:, config.history - 1 :]).flatten(-2)
        rows, size = done.shape
        shape = (rows, config.local_negatives + 2, size)
        normal = torch.randn(shape, generator=generator, device=done.device)
        done = (done + config.blur * normal[:, 0])[:, None]
        uniform = torch.rand((rows, config.negatives, size), generator=generator, device=done.device)
        around = done + config.local_noise * (normal[:, 1:2] + normal[:, 2:])
        candidates = torch.cat([done, 2 * uniform - 1, around], dim=1)
        energy = self.network(self._seen(batch.states), candidates, generator)
        far, near = energy.split([1 + config.negatives, config.local_negatives], dim=1)
        parts = {"info_nce": info_nce(far)}
        if config.local_negatives:
            parts["local"] = info_nce(torch.cat([far[:, :1], near], dim=1))
        return LossParts(parts)

    def stages(self) -> tuple[Stage, ...]:
        """Everything at once."""
        losses = ("info_nce", "local") if self.config.local_negatives else ("info_nce",)
        return (Stage(losses, tuple(self.parameters())),)

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        """Candidates from everywhere, drawn to low energies; then one of them."""
        chosen, seen = choose_sampling(self.config.sampling, sampling), self._seen(states)
        act_dim, n = self.layout.spec.act_dim, chosen.samples
        size, moves = self.config.longest_chunk * act_dim, chosen.iterations - 1
        uniform = draws.uniform(n * (size + moves) + 1)
        noise = draws.normal(moves, n, size)
        candidates = 2 * uniform[:, : n * size].reshape(len(states), n, size) - 1
        picks = uniform[:, n * size : -1].reshape(len(states), moves, n)

        def energy(actions: Tensor) -> Tensor:
            found: Tensor = self.network(seen, actions)
            return found

        if chosen.inference == "langevin":
            rates = [chosen.step * 0.01 ** (i / max(1, moves - 1)) for i in range(moves)]
            candidates = langevin(energy, candidates, noise, rates)
        else:
            candidates = derivative_free(
                energy, candidates, noise, picks, spread=chosen.noise, shrink=chosen.shrink
            )
        last = energy(candidates)
        best = last.argmin(-1, keepdim=True)
        index = best if chosen.answer == "best" else resample(last, uniform[:, -1:])
        actions = _pick(candidates, index).reshape(len(states), -1, act_dim)
        return self.layout.from_unit(actions[:, :steps])

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """One per iteration, each for all candidates; Langevin's also go backwards, which is not counted."""
        return choose_sampling(self.config.sampling, sampling).iterations

    def _seen(self, states: Tensor) -> Tensor:
        return self.layout.obs_features(states).flatten(-2)
