"""Diffusion Policy (Chi et al. 2023): action chunks sampled by iterative denoising, given the observations.

Noise is added to a chunk x₀, x_t = √ᾱ_t x₀ + √(1 − ᾱ_t) ε, t = 0 … 99, with the cosine schedule; a network
predicts ε, and a chain of steps leads from noise to actions (Ho et al. 2020: DDPM; Song et al. 2021: DDIM).

Deviation: the original observes keypoints of the block; here the input is the task's observation, with angles
as sine and cosine.
"""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple, cast

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.bounds import Size
from nsde_policy.config import BaseConfig, Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.batches import Windows
from nsde_policy.core.networks import weights_from
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout

from ..base import BatchRng, PolicyModel, choose_sampling
from ..registry import register_method

LEVELS = 100
"""Number of noise levels, T."""
NORM_GROUPS = 8
"""Groups of all group normalisations."""


@dataclass(frozen=True)
class DiffusionSampling(Sampling):
    """Settings of the denoising chain; they can be changed after training."""

    scheduler: Literal["ddpm", "ddim"] = "ddpm"
    """DDPM adds noise at each of 100 steps; DDIM adds none and takes any number of steps."""
    steps: Annotated[int, Meta(ge=1, le=LEVELS)] = LEVELS
    """Network calls per plan: 100 for DDPM, 1 to 100 for DDIM; quality falls below ten."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.scheduler == "ddim" or self.steps == LEVELS
        require(self, whole, f"DDPM needs {LEVELS} steps, got {self.steps}; choose scheduler ddim for fewer")


@dataclass(frozen=True)
class UNetConfig(BaseConfig):
    """Settings of the U-Net."""

    channels: tuple[Size, ...] = (256, 512, 1024)
    """Channels of each level; every level but the last halves time."""
    kernel: Size = 5
    """Kernel size of the convolutions over time, odd."""
    step_embedding: Size = 256
    """Size of the embedding of the noise level."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, min(self.channels, default=0) >= 1, "channels must name positive sizes")
        require(self, self.kernel % 2 == 1, f"need an odd kernel, got {self.kernel}")
        whole = all(c % NORM_GROUPS == 0 for c in self.channels)
        require(self, whole, f"channels {self.channels} must be multiples of {NORM_GROUPS}")
        even = self.step_embedding >= 4 and self.step_embedding % 2 == 0
        require(self, even, f"need an even step_embedding >= 4, got {self.step_embedding}")


@dataclass(frozen=True)
class DiffusionConfig(WindowConfig):
    """Settings of Diffusion Policy."""

    unet: UNetConfig = field(default_factory=UNetConfig)
    """Size of the network, a U-Net over time."""
    sampling: DiffusionSampling = field(default_factory=DiffusionSampling)
    """Default settings of the denoising chain."""

    @property
    def gains_from_threads(self) -> bool:
        """Whether training on a CPU is faster with several threads; only large networks gain."""
        return max(self.unet.channels) > 256

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = len(self.unet.channels)
        fold = 2 ** (levels - 1)
        rule = f"a U-Net of {levels} levels needs a horizon that is a multiple of {fold}, got {self.horizon}"
        require(self, self.horizon % fold == 0, rule)


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
"""The original's settings: 500 warm-up steps, no gradient clipping.

Deviation: the original trains for 5000 epochs, about 210 000 steps on its 90 demonstrations, in float32, and
the decay of its averaged weights is 1 − n^(−¾).
"""

PRESETS = {
    "default": Preset(DiffusionConfig(), _UNET_RECIPE),
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
    """ε̂(x_t, t, observations) and the denoising chain; actions are scaled to [-1, 1]."""

    alphas_cumprod: Tensor

    def __init__(self, config: DiffusionConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: DiffusionConfig = config
        self.layout = StateLayout(spec)
        self.register_buffer("alphas_cumprod", torch.tensor(noise_schedule()), persistent=False)
        with weights_from(generator):
            obs_dim = config.history * self.layout.obs_feature_dim
            self.network = ConditionalUNet(config.unet, spec.act_dim, obs_dim)

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the mean square error of the predicted noise, at a uniformly sampled level per window."""
        clean = self.layout.to_unit(batch.actions)
        t = torch.randint(LEVELS, (len(clean),), generator=generator, device=clean.device)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device)
        context = self.network.embed_observations(self._observations(batch.states))
        estimate = self.network(self.add_noise(clean, noise, t), self.network.embed_levels(t), context)
        return {"noise": (estimate.float() - noise).square().mean()}

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return x_t = √ᾱ_t x₀ + √(1 − ᾱ_t) ε for actions (n, horizon, act_dim) at levels t (n,)."""
        alpha_bar = self.alphas_cumprod[t][:, None, None]
        return alpha_bar.sqrt() * clean + (1 - alpha_bar).sqrt() * noise

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Sample one chunk per row with the denoising chain."""
        chain = build_chain(choose_sampling(self.config.sampling, sampling))
        noisy = sum(step.noise_std > 0 for step in chain)
        noise = rng.normal(1 + noisy, self.config.horizon, self.layout.spec.act_dim).transpose(0, 1)
        x, remaining = noise[0], iter(noise[1:])
        context = self.network.embed_observations(self._observations(states))
        times = torch.stack([states.new_full((), step.t) for step in chain])  # without a copy to a GPU
        levels = self.network.embed_levels(times)
        for step, level in zip(chain, torch.split(levels, 1), strict=True):
            x = step.apply(
                x, self.network(x, level, context), next(remaining) if step.noise_std > 0 else None
            )
        present = self.config.history - 1
        return self.layout.from_unit(x[:, present : present + steps])

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Return one call per step of the chain, for any number of actions."""
        return choose_sampling(self.config.sampling, sampling).steps

    def _observations(self, states: Tensor) -> Tensor:
        """Return the observation features, oldest first, (n, history, features)."""
        return self.layout.obs_features(states.flip(1))


@functools.cache
def noise_schedule() -> tuple[float, ...]:
    """Return ᾱ_t, the fraction of the actions' variance that remains at level t, t = 0 … 99."""
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    scheduler = DDPMScheduler(num_train_timesteps=LEVELS, beta_schedule="squaredcos_cap_v2")
    return tuple(scheduler.alphas_cumprod.tolist())


class ChainStep(NamedTuple):
    """x_t → x_s, s < t: x̂₀ = clip((x_t − √(1 − ᾱ_t) ε̂) / √ᾱ_t), x_s = a x̂₀ + b x_t + c ε̂ + σ z."""

    t: int
    """Noise level before the step."""
    alpha_bar: float
    """ᾱ_t, see `noise_schedule`."""
    x0_factor: float
    """Coefficient a of x̂₀."""
    xt_factor: float
    """Coefficient b of x_t."""
    noise_factor: float
    """Coefficient c of ε̂."""
    noise_std: float
    """Standard deviation σ of the added noise."""

    def apply(self, x: Tensor, epsilon: Tensor, noise: Tensor | None) -> Tensor:
        """Return x_s given x_t and ε̂; `noise` is standard normal, None if σ = 0."""
        clean = (
            torch.add(x, epsilon, alpha=-math.sqrt(1 - self.alpha_bar))
            .div_(math.sqrt(self.alpha_bar))
            .clamp_(-1, 1)
        )
        rest = (x, self.xt_factor) if self.xt_factor else (epsilon, self.noise_factor)
        out = clean.mul_(self.x0_factor).add_(rest[0], alpha=rest[1])
        return out if noise is None else out.add_(noise, alpha=self.noise_std)


@functools.cache
def build_chain(sampling: DiffusionSampling) -> tuple[ChainStep, ...]:
    """Return the steps from the highest noise level to the actions, as plain numbers.

    They equal those of diffusers' DDPMScheduler (variance `fixed_small`) and DDIMScheduler (η = 0), but the
    noise of each row is given and no table is read on the device.

    Deviation: if DDIM's number of steps does not divide 100, diffusers rounds the stride and starts at a low
    noise level (60 steps: at 59); here levels are ⌊100 k / steps⌋, which is the same if it does divide.
    """
    levels = [LEVELS * k // sampling.steps for k in range(sampling.steps)]
    alpha_bar_after = [1.0, *(noise_schedule()[t] for t in levels[:-1])]
    build = _build_ddpm_step if sampling.scheduler == "ddpm" else _build_ddim_step
    steps = [build(t, noise_schedule()[t], after) for t, after in zip(levels, alpha_bar_after, strict=True)]
    return tuple(reversed(steps))


def _build_ddpm_step(t: int, alpha_bar: float, alpha_bar_after: float) -> ChainStep:
    """Compute mean and standard deviation of q(x_s | x_t, x̂₀), Ho et al. (2020), Eq. 7."""
    ratio, variance, variance_after = alpha_bar / alpha_bar_after, 1 - alpha_bar, 1 - alpha_bar_after
    return ChainStep(
        t,
        alpha_bar,
        x0_factor=math.sqrt(alpha_bar_after) * (1 - ratio) / variance,
        xt_factor=math.sqrt(ratio) * variance_after / variance,
        noise_factor=0.0,
        noise_std=math.sqrt((1 - ratio) * variance_after / variance),
    )


def _build_ddim_step(t: int, alpha_bar: float, alpha_bar_after: float) -> ChainStep:
    """Keep the noise and lower its level, Song et al. (2021), Eq. 12 with σ = 0."""
    return ChainStep(
        t,
        alpha_bar,
        x0_factor=math.sqrt(alpha_bar_after),
        xt_factor=0.0,
        noise_factor=math.sqrt(1 - alpha_bar_after),
        noise_std=0.0,
    )


class Sinusoid(nn.Module):
    """Sinusoidal embedding with dim / 2 frequencies from 1 down to 1/10 000: sines, then cosines."""

    frequencies: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        half = dim // 2
        decay = torch.arange(half) * (-math.log(10_000) / (half - 1))
        self.register_buffer("frequencies", decay.exp(), persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        """Map levels (k,) to embeddings (k, dim)."""
        phase = t[:, None] * self.frequencies
        return torch.cat([phase.sin(), phase.cos()], dim=-1)


class TimeConv(nn.Conv1d):
    """A convolution over time; on CUDA computed as a 2-D convolution, which has faster kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, inputs, time) to (rows, outputs, time)."""
        if not x.is_cuda:
            return super().forward(x)
        wide, weight = (
            tensor[:, :, None].to(memory_format=torch.channels_last) for tensor in (x, self.weight)
        )
        stride, padding = (1, self.stride[0]), (0, int(self.padding[0]))
        return functional.conv2d(wide, weight, self.bias, stride=stride, padding=padding)[:, :, 0]


class ConvBlock(nn.Sequential):
    """Convolution over time that keeps its length, GroupNorm, Mish."""

    def __init__(self, inputs: int, outputs: int, config: UNetConfig) -> None:
        super().__init__(
            TimeConv(inputs, outputs, config.kernel, padding=config.kernel // 2),
            nn.GroupNorm(NORM_GROUPS, outputs),
            nn.Mish(),
        )


class FiLMBlock(nn.Module):
    """Two convolutions with a residual; between them each channel is scaled and shifted (FiLM)."""

    def __init__(self, inputs: int, outputs: int, config: UNetConfig) -> None:
        super().__init__()
        self.channels = outputs
        self.before = ConvBlock(inputs, outputs, config)
        self.after = ConvBlock(outputs, outputs, config)
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, film: Tensor) -> Tensor:
        """Map x (rows, inputs, time) and film (rows, 2·outputs: scales, shifts) to (rows, outputs, time)."""
        scale, shift = film[..., None].chunk(2, dim=1)
        out: Tensor = self.after(torch.addcmul(shift, scale, self.before(x))) + self.skip(x)
        return out


class ConditionalUNet(nn.Module):
    """ε̂(x_t, t, o): a U-Net over time, conditioned on observations and noise level by FiLM in every block.

    Observations o, (rows, history, features), oldest first, and noise levels t, (k,), enter separately. A
    plan therefore embeds the observations once and all noise levels at once, and only `forward` runs at each
    step: on actions x_t (rows, horizon, act_dim), with one level, or one per row.

    Each level halves the time resolution; as in the original, the skip of the first level is not used on the
    way up. All scales and shifts come from one linear layer, which concatenates the original's one layer per
    block.
    """

    def __init__(self, config: UNetConfig, act_dim: int, obs_dim: int) -> None:
        super().__init__()

        def pair(inputs: int, outputs: int) -> nn.ModuleList:
            return nn.ModuleList([FiLMBlock(inputs, outputs, config), FiLMBlock(outputs, outputs, config)])

        channels = config.channels
        step_dim = config.step_embedding
        levels = list(zip((act_dim, *channels), channels, strict=False))
        self.step = nn.Sequential(
            Sinusoid(step_dim),
            nn.Linear(step_dim, 4 * step_dim),
            nn.Mish(),
            nn.Linear(4 * step_dim, step_dim),
        )
        self.down = nn.ModuleList(pair(inputs, outputs) for inputs, outputs in levels)
        self.shrink = nn.ModuleList(TimeConv(c, c, 3, stride=2, padding=1) for c in channels[:-1])
        self.middle = pair(channels[-1], channels[-1])
        self.up = nn.ModuleList(pair(2 * outputs, inputs) for inputs, outputs in reversed(levels[1:]))
        self.grow = nn.ModuleList(
            nn.ConvTranspose1d(c, c, 4, stride=2, padding=1) for c in reversed(channels[:-1])
        )
        self.last = nn.Sequential(
            ConvBlock(channels[0], channels[0], config),
            nn.Conv1d(channels[0], act_dim, 1),
        )
        self.films = [2 * block.channels for block in self.modules() if isinstance(block, FiLMBlock)]
        self.film = nn.Linear(step_dim + obs_dim, sum(self.films))
        self.step_dim = step_dim

    def embed_observations(self, obs: Tensor) -> Tensor:
        """Compute the observations' part of all scales and shifts, (rows, channels of all blocks)."""
        return functional.linear(functional.mish(obs.flatten(1)), self.film.weight[:, self.step_dim :])

    def embed_levels(self, t: Tensor) -> Tensor:
        """Compute the noise levels' part of all scales and shifts, (k, channels of all blocks)."""
        embedded = functional.mish(self.step(t))
        return functional.linear(embedded, self.film.weight[:, : self.step_dim], self.film.bias)

    def forward(self, noisy: Tensor, level: Tensor, context: Tensor) -> Tensor:
        """Apply the down path, the middle and the up path."""
        films = iter(torch.split(level + context, self.films, dim=1))
        x, skips = noisy.transpose(1, 2), []
        for depth, blocks in enumerate(self.down):
            x = _apply_blocks(blocks, x, next(films), next(films))
            skips.append(x)
            if depth < len(self.shrink):
                x = self.shrink[depth](x)
        x = _apply_blocks(self.middle, x, next(films), next(films))
        for blocks, grow in zip(self.up, self.grow, strict=True):
            x = grow(_apply_blocks(blocks, torch.cat([x, skips.pop()], dim=1), next(films), next(films)))
        out: Tensor = self.last(x)
        return out.transpose(1, 2)


def _apply_blocks(blocks: nn.Module, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    one, two = cast(nn.ModuleList, blocks)
    out: Tensor = two(one(x, first), second)
    return out
