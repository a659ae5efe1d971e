"""Diffusion Policy (Chi et al. 2023): action chunks drawn by undoing noise, given what was observed.

A chunk x₀ is blurred to x_t = √ᾱ_t x₀ + √(1 − ᾱ_t) ε, t = 0 … 99, by the cosine schedule; a network learns ε,
and a chain of steps leads from noise to actions (Ho et al. 2020: DDPM; Song et al. 2021: DDIM).

Deviation: the original sees keypoints of the block; this sees the task's own observation, angles as sine and
cosine.
"""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nsde_policy.config import BaseConfig, Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.networks import weights_from
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import Windows
from nsde_policy.methods.base import Draws, LossParts, PolicyModel, Stage, choose_sampling
from nsde_policy.methods.diffusion.networks import AbstractDenoiser, ConditionalUNet, DenoisingTransformer
from nsde_policy.methods.registry import register_method

LEVELS = 100
"""Levels of noise the network is trained on, T."""


@dataclass(frozen=True)
class UNetConfig(BaseConfig):
    """Size of the U-Net."""

    channels: tuple[int, ...] = (256, 512, 1024)
    """Channels of each level; every level but the last halves time."""
    kernel: int = 5
    """Actions a convolution spans, odd."""
    groups: int = 8
    """Groups of channels that are normalised together."""
    step_embedding: int = 256
    """Numbers that stand for the step of the chain."""

    def __post_init__(self) -> None:
        require(
            self, len(self.channels) >= 1 and min(self.channels) >= 1, "channels must name positive sizes"
        )
        require(
            self, self.kernel >= 1 and self.kernel % 2 == 1, f"need an odd kernel >= 1, got {self.kernel}"
        )
        whole = self.groups >= 1 and all(c % self.groups == 0 for c in self.channels)
        require(self, whole, f"channels {self.channels} must be multiples of groups, {self.groups}")
        even = self.step_embedding >= 4 and self.step_embedding % 2 == 0
        require(self, even, f"need an even step_embedding >= 4, got {self.step_embedding}")


@dataclass(frozen=True)
class TransformerConfig(BaseConfig):
    """Size of the transformer."""

    layers: int = 8
    """Decoder layers."""
    heads: int = 4
    """Heads of each attention."""
    embedding: int = 256
    """Numbers per token."""
    dropout: float = 0.3
    """Fraction left out in training, of attention weights and of what is added to a token."""

    def __post_init__(self) -> None:
        require(
            self,
            self.layers >= 1 and self.heads >= 1,
            f"need layers, heads >= 1: {self.layers}, {self.heads}",
        )
        fits = self.embedding >= 4 and self.embedding % 2 == 0 and self.embedding % self.heads == 0
        require(self, fits, f"embedding must be even, >= 4 and a multiple of heads, got {self.embedding}")
        require(self, 0 <= self.dropout < 1, f"need 0 <= dropout < 1, got {self.dropout}")


@dataclass(frozen=True)
class DiffusionSampling(Sampling):
    """How the noise is undone; nothing here needs training again."""

    scheduler: Literal["ddpm", "ddim"] = "ddpm"
    """Draw fresh noise at every step of all 100 (DDPM), or none at any number of steps (DDIM)."""
    steps: int = LEVELS
    """Network calls of a plan: 100 for DDPM, 1 to 100 for DDIM; below ten the samples are poor."""

    def __post_init__(self) -> None:
        require(self, 1 <= self.steps <= LEVELS, f"need 1 <= steps <= {LEVELS}, got {self.steps}")
        whole = self.scheduler == "ddim" or self.steps == LEVELS
        require(self, whole, f"DDPM takes all {LEVELS} steps, got {self.steps}; DDIM takes fewer")


@dataclass(frozen=True)
class DiffusionConfig(WindowConfig):
    """Diffusion Policy: which network, of which size, and how it is sampled."""

    network: Literal["unet", "transformer"] = "unet"
    """Convolutions over time, or attention."""
    unet: UNetConfig = field(default_factory=UNetConfig)
    """Size of the U-Net, where that is the network."""
    transformer: TransformerConfig = field(default_factory=TransformerConfig)
    """Size of the transformer, where that is the network."""
    sampling: DiffusionSampling = field(default_factory=DiffusionSampling)
    """How the noise is undone, unless said otherwise when a plan is drawn."""

    @property
    def gains_from_threads(self) -> bool:
        """The original's networks do; small U-Nets are small steps."""
        return self.network == "transformer" or max(self.unet.channels) > 256

    def __post_init__(self) -> None:
        super().__post_init__()
        fold = 2 ** (len(self.unet.channels) - 1)
        levels, halves = len(self.unet.channels), self.network != "unet" or self.horizon % fold == 0
        require(
            self,
            halves,
            f"a U-Net of {levels} levels needs a horizon that is a multiple of {fold}, got {self.horizon}",
        )


_UNET_RECIPE = TrainConfig(
    steps=50_000,
    batch_size=256,
    learning_rate=1e-4,
    warmup=0.01,
    weight_decay=1e-6,
    betas=(0.95, 0.999),
    clip=1e6,
    ema=0.9999,
    precision="bf16",
)
"""The original's: 500 steps of warm-up, and no gradient is clipped.

Deviation: the original trains for 5000 epochs, about 210 000 steps on the 90 demonstrations of Push-T that
it takes, in float32, and the decay of its average of the weights is 1 − n^(−¾).
"""

_TRANSFORMER_RECIPE = replace(_UNET_RECIPE, warmup=0.02, weight_decay=1e-3, betas=(0.9, 0.95))
"""The original's: 1000 steps of warm-up.

Deviation: the original decays no bias, norm or position, and trains for 5000 epochs (Push-T: 8000).
"""

PRESETS = {
    "default": Preset(DiffusionConfig(), _UNET_RECIPE),
    "transformer": Preset(DiffusionConfig(network="transformer"), _TRANSFORMER_RECIPE),
    "small": Preset(
        DiffusionConfig(unet=UNetConfig(channels=(64, 128, 256))), replace(_UNET_RECIPE, learning_rate=3e-4)
    ),
    "fast": Preset(
        DiffusionConfig(
            unet=UNetConfig(channels=(32, 64, 128), kernel=3, step_embedding=64),
            sampling=DiffusionSampling("ddim", 10),
        ),
        replace(_UNET_RECIPE, steps=10_000, batch_size=64, learning_rate=1e-3, warmup=0.03, ema=0.999),
    ),
}


@register_method("diffusion", title="Diffusion Policy", config=DiffusionConfig, presets=PRESETS)
class Diffusion(PolicyModel[Windows]):
    """ε̂(x_t, t, observations), and the chain that undoes it. Actions are scaled to [-1, 1]."""

    alphas_cumprod: Tensor

    def __init__(self, config: DiffusionConfig, layout: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: DiffusionConfig = config
        self.layout = StateLayout(layout)
        self.register_buffer("alphas_cumprod", torch.tensor(schedule()), persistent=False)
        with weights_from(generator):
            self.network = denoiser_of(config, layout.act_dim, self.layout.obs_feature_dim)

    def loss(self, batch: Windows, generator: torch.Generator) -> LossParts:
        """Mean square error of the noise, at a uniformly drawn level for each window."""
        clean = self.layout.to_unit(batch.actions)
        t = torch.randint(LEVELS, (len(clean),), generator=generator, device=clean.device)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device)
        context = self.network.context(self._observations(batch.states))
        found = self.network(self.add_noise(clean, noise, t), self.network.clock(t), context, generator)
        return LossParts({"noise": (found.float() - noise).square().mean()})

    def stages(self) -> tuple[Stage, ...]:
        """Everything at once."""
        return (Stage(("noise",), tuple(self.parameters())),)

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """x_t = √ᾱ_t x₀ + √(1 − ᾱ_t) ε for actions (n, horizon, act_dim) at levels t (n,)."""
        kept = self.alphas_cumprod[t][:, None, None]
        return kept.sqrt() * clean + (1 - kept).sqrt() * noise

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        """One chunk per row, from noise down the chain."""
        chain = chain_of(choose_sampling(self.config.sampling, sampling))
        fresh = sum(step.fresh > 0 for step in chain)
        noise = draws.normal(1 + fresh, self.config.horizon, self.layout.spec.act_dim).transpose(0, 1)
        x, left = noise[0], iter(noise[1:])
        context = self.network.context(self._observations(states))
        clocks = self.network.clock(torch.tensor([step.t for step in chain], device=states.device))
        for step, clock in zip(chain, torch.split(clocks, 1), strict=True):
            x = step.down(x, self.network(x, clock, context), next(left) if step.fresh > 0 else None)
        present = self.config.history - 1
        return self.layout.from_unit(x[:, present : present + steps])

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """One per step of the chain, however many actions are used."""
        return choose_sampling(self.config.sampling, sampling).steps

    def _observations(self, states: Tensor) -> Tensor:
        """What the network sees, oldest first, (n, history, features)."""
        return self.layout.obs_features(states.flip(1))


def denoiser_of(config: DiffusionConfig, act_dim: int, obs_features: int) -> AbstractDenoiser:
    """The network the settings ask for."""
    if config.network == "unet":
        return ConditionalUNet(
            act_dim=act_dim,
            obs_dim=config.history * obs_features,
            channels=config.unet.channels,
            kernel=config.unet.kernel,
            groups=config.unet.groups,
            step_dim=config.unet.step_embedding,
        )
    return DenoisingTransformer(
        act_dim=act_dim,
        obs_dim=obs_features,
        history=config.history,
        horizon=config.horizon,
        width=config.transformer.embedding,
        layers=config.transformer.layers,
        heads=config.transformer.heads,
        dropout=config.transformer.dropout,
    )


@functools.cache
def schedule() -> tuple[float, ...]:
    """ᾱ_t, the fraction of variance that level t keeps of the actions, t = 0 … 99."""
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    scheduler = DDPMScheduler(num_train_timesteps=LEVELS, beta_schedule="squaredcos_cap_v2")
    return tuple(scheduler.alphas_cumprod.tolist())


class ChainStep(NamedTuple):
    """x_t → x_s, s < t: x̂₀ = clip((x_t − √(1 − ᾱ_t) ε̂) / √ᾱ_t), x_s = a x̂₀ + b x_t + c ε̂ + σ z."""

    t: int
    """Level it leaves."""
    kept: float
    """ᾱ_t."""
    clean: float
    """a, weight of x̂₀."""
    same: float
    """b, weight of x_t."""
    found: float
    """c, weight of ε̂."""
    fresh: float
    """σ, spread of the fresh noise."""

    def down(self, x: Tensor, epsilon: Tensor, noise: Tensor | None) -> Tensor:
        """x_s of x_t and ε̂; `noise` is standard normal, None where σ = 0."""
        clean = (
            torch.add(x, epsilon, alpha=-math.sqrt(1 - self.kept)).div_(math.sqrt(self.kept)).clamp_(-1, 1)
        )
        rest = (x, self.same) if self.same else (epsilon, self.found)
        out = clean.mul_(self.clean).add_(rest[0], alpha=rest[1])
        return out if noise is None else out.add_(noise, alpha=self.fresh)


@functools.cache
def chain_of(sampling: DiffusionSampling) -> tuple[ChainStep, ...]:
    """The steps from the noisiest level to the actions, as plain numbers.

    They are those of diffusers' DDPMScheduler (variance `fixed_small`) and DDIMScheduler (η = 0), with noise
    that is given row by row and no table that is read on the way.

    Deviation: where DDIM's number of steps does not divide 100, diffusers rounds the stride and begins at a
    level with little noise (60 steps: at 59); here levels are ⌊100 k / steps⌋, the same where it does divide.
    """
    levels = [LEVELS * k // sampling.steps for k in range(sampling.steps)]
    kept_after = [1.0, *(schedule()[t] for t in levels[:-1])]
    make = _ddpm if sampling.scheduler == "ddpm" else _ddim
    return tuple(make(t, schedule()[t], after) for t, after in zip(levels, kept_after, strict=True))[::-1]


def _ddpm(t: int, kept: float, kept_after: float) -> ChainStep:
    """Mean and variance of q(x_s | x_t, x̂₀), Ho et al. (2020), Eq. 7."""
    ratio, gone, gone_after = kept / kept_after, 1 - kept, 1 - kept_after
    return ChainStep(
        t,
        kept,
        clean=math.sqrt(kept_after) * (1 - ratio) / gone,
        same=math.sqrt(ratio) * gone_after / gone,
        found=0.0,
        fresh=math.sqrt((1 - ratio) * gone_after / gone),
    )


def _ddim(t: int, kept: float, kept_after: float) -> ChainStep:
    """The same noise at a lower level, Song et al. (2021), Eq. 12 with σ = 0."""
    return ChainStep(
        t, kept, clean=math.sqrt(kept_after), same=0.0, found=math.sqrt(1 - kept_after), fresh=0.0
    )
