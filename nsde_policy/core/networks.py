"""Networks of the SDE: a trunk and heads for drift, log variance and score.

Randomness is explicit: initial weights and dropout masks come from the generator that is passed in.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.config import NetworkConfig
from nsde_policy.errors import ConfigError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "relu": torch.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class Outputs(NamedTuple):
    """Outputs of the networks at one point, in network units."""

    drift: Tensor
    """Drift f, shape (..., d)."""
    log_variance: Tensor
    """Log variance log g², (..., d)."""
    score: Tensor
    """σ d, the score times σ of the noise it was trained with, (..., d)."""


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Build a linear layer with PyTorch's default initialisation, sampled from `generator`."""
    layer = nn.Linear(inputs, outputs, device="meta")  # without initial weights
    bound = 1 / math.sqrt(inputs)
    layer.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator))
    layer.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=generator))
    return layer


def get_affine(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a linear layer or a LayerNorm."""
    return cast(Tensor, module.weight), cast(Tensor, module.bias)


@contextmanager
def weights_from(generator: torch.Generator) -> Iterator[None]:
    """Sample initial weights of modules built inside the context from `generator`."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator.get_state())
        yield
        generator.set_state(torch.random.get_rng_state())


class Dropout(nn.Module):
    """Dropout whose masks come from a generator that is passed in.

    One random byte decides each element, so the probability is rounded to 1/256.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.keep = 1 - probability

    def sample_mask(
        self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None
    ) -> Tensor | None:
        """Sample a mask of 0 and 1/keep, in the dtype and on the device of `like`; None outside training."""
        if not self.training or self.keep == 1:
            return None
        if generator is None:
            raise ConfigError("dropout in training needs a random generator")
        # One random number makes eight bytes: on a CPU, this is many times faster than one per byte.
        count = math.prod(shape)
        words = torch.empty(-(-count // 8), dtype=torch.int64, device=generator.device)
        random_bytes = words.random_(-(2**63), None, generator=generator).view(torch.uint8)[:count]
        threshold = min(max(round(self.keep * 256), 1), 256)
        mask = random_bytes.reshape(shape) <= threshold - 1  # a byte is at most 255
        return mask.to(like.dtype).mul_(256 / threshold)


class MLP(nn.Module):
    """`depth` hidden layers of `width`: linear, LayerNorm, activation, dropout; then a linear layer.

    `outputs=None` omits the last linear layer, which gives a trunk. The `kind` in the settings is ignored.
    """

    def __init__(
        self, inputs: int, outputs: int | None, config: NetworkConfig, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.width = config.width
        self.dropout = Dropout(config.dropout)
        sizes = [inputs, *[self.width] * (config.depth - 1)]
        self.layers = nn.ModuleList(linear(size, self.width, generator) for size in sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(self.width) for _ in sizes if config.layer_norm)
        self.activation = ACTIVATIONS[config.activation]
        self.output = nn.Identity() if outputs is None else linear(self.width, outputs, generator)

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Map (..., inputs) to (..., outputs); in training, dropout masks come from `generator`."""
        shape = (len(self.layers), *features.shape[:-1], self.width)
        masks = self.dropout.sample_mask(shape, features, generator)
        layers = [get_affine(layer) for layer in self.layers]
        norms = [get_affine(norm) for norm in self.norms]
        h = features
        # Functions instead of modules: for a single row, calling a module takes longer than its arithmetic.
        for i, (weight, bias) in enumerate(layers):
            h = functional.linear(h, weight, bias)
            if norms:
                h = torch.layer_norm(h, (self.width,), *norms[i])
            h = self.activation(h)
            if masks is not None:
                h = h * masks[i]
        output: Tensor = self.output(h)
        return output


class Networks(nn.Module):
    """Drift, log variance and score of a state: one trunk with three linear heads, or three networks.

    Deviation: the paper trains separate networks. One trunk needs a third of the network calls and scored
    higher on the benchmark; in return the three losses share the same features.
    """

    def __init__(self, inputs: int, dim: int, config: NetworkConfig, *, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk: MLP | None = None
        build_head: Callable[[], nn.Module] = partial(MLP, inputs, dim, config, generator=generator)
        if config.kind == "shared":
            self.trunk = MLP(inputs, None, config, generator=generator)
            build_head = partial(linear, config.width, dim, generator)
        self.drift, self.log_variance, self.score = build_head(), build_head(), build_head()

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Outputs:
        """Map features (..., inputs) to three outputs (..., dim)."""
        heads = (self.drift, self.log_variance, self.score)
        if self.trunk is None:
            return Outputs(*(network(features, generator) for network in heads))
        h = self.trunk(features, generator)
        return Outputs(*(head(h) for head in heads))
