"""A Neural SDE with everything constant folded into its weights: as few operators per step as there can be.

Per solver step, with x in state units and h the trunk's answer:

    x ← x + W h + b + √(c + e^(V h + v)) ⊙ z

W and b hold the drift's and the denoiser's head with all their scales, V and v the log variance with the
solver's step and the sampling's factor, c the floor of the variance: e^(floor + softplus(l − floor)) is
e^floor + e^l. The scaling of the state to network units is in the trunk's first layer, and the history is
the states before, which are at hand.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.config import Sampling
from nsde_policy.core.networks import MLP, SharedTrunk
from nsde_policy.core.state import StateLayout
from nsde_policy.methods.neural_sde.config import SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE


def can_fold(model: NeuralSDE, sampling: Sampling) -> bool:
    """Whether a step is one call of one trunk, the pull of the denoiser linear, the history exact."""
    assert isinstance(sampling, SamplingConfig)
    return (
        isinstance(model.learned.networks, SharedTrunk)
        and sampling.denoiser in ("constant", "off")
        and sampling.diffusion > 0
        and (sampling.substeps == 1 or model.config.history == 1)
    )


class Seen(NamedTuple):
    """A state as the first layer sees it, each (1, d); columns it does not look at have weights of 0."""

    x: Tensor
    sine: Tensor
    cosine: Tensor


class FoldedSDE(nn.Module):
    """The same paths as `NeuralSDE.futures` for one row, up to rounding."""

    def __init__(self, model: NeuralSDE, steps: int, sampling: Sampling) -> None:
        super().__init__()
        assert isinstance(sampling, SamplingConfig)
        assert isinstance(model.learned.networks, SharedTrunk)
        self.steps, self.substeps, self.history = steps, sampling.substeps, model.config.history
        self.obs_dim, self.has_angles = model.layout.spec.obs_dim, bool(model.layout.spec.circular)
        self.trunk = _trunk(model.learned.networks.trunk, model.layout, self.history)
        heads, part = model.learned.networks, 1 / sampling.substeps
        scale, blur = _exact(model.layout.increment_std), _exact(model.learned.noise_std)
        alpha = 0.0 if sampling.denoiser == "off" else sampling.alpha
        drift, score = (scale * part)[:, None], (alpha * blur * part)[:, None]
        mean = drift * _exact(heads.drift.weight) + score * _exact(heads.score.weight)
        shift = drift[:, 0] * _exact(heads.drift.bias) + score[:, 0] * _exact(heads.score.bias)
        spread = sampling.diffusion * scale * math.sqrt(part)
        log_variance = _exact(heads.log_variance.bias) + 2 * spread.log()
        self.register_buffer("mean", mean.float())
        self.register_buffer("shift", shift.float())
        self.register_buffer("floor", (spread.square() * model.learned.variance_floor).float())
        self.register_buffer("variance", _exact(heads.log_variance.weight).float())
        self.register_buffer("log_variance", log_variance.float())

    mean: Tensor
    shift: Tensor
    floor: Tensor
    variance: Tensor
    log_variance: Tensor

    def forward(self, states: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(history, d) and (steps · substeps, d) → actions (steps, act_dim), path (steps + 1, d), σ of each
        action over its whole period, as its first solver step sees it, (steps, act_dim).
        """
        seen = [self._seen(row) for row in torch.split(states, 1)]
        x = seen[0].x
        path, std = [x], []
        for k, z in enumerate(torch.split(noise, 1)):
            h = self.trunk(torch.cat([part for one in seen for part in one[: self._parts]], dim=-1))
            spread = (self.floor + functional.linear(h, self.variance, self.log_variance).exp()).sqrt()
            if k % self.substeps == 0:
                std.append(spread)
            x = x + (functional.linear(h, self.mean, self.shift) + spread * z)  # small numbers first
            seen = [self._seen(x), *seen[:-1]]
            if (k + 1) % self.substeps == 0:
                path.append(x)
        joined = torch.cat(path)
        unsure = torch.cat(std)[:, self.obs_dim :]
        if self.substeps > 1:
            unsure = unsure * math.sqrt(self.substeps)
        return joined[1:, self.obs_dim :], joined, unsure

    @property
    def _parts(self) -> int:
        return 3 if self.has_angles else 1

    def _seen(self, x: Tensor) -> Seen:
        """Sines of all columns: one operator less than picking the angles."""
        return Seen(x, x.sin(), x.cos()) if self.has_angles else Seen(x, x, x)


def _trunk(trunk: MLP, layout: StateLayout, history: int) -> MLP:
    """The trunk with a first layer that takes x, sin x, cos x of every state, in state units."""
    first = trunk.layers[0]
    weight, bias = _exact(first.weight), _exact(first.bias)
    low, high = _exact(layout.low), _exact(layout.high)
    linear, circular = layout.linear_index, layout.circular_index
    gain = 2 / (high - low)[linear]
    columns = []
    for block in torch.split(weight, layout.feature_dim, dim=1):
        flat, sine, cosine = torch.split(block, [len(linear), len(circular), len(circular)], dim=1)
        bias = bias - flat @ (low[linear] * gain + 1)
        kinds = [(linear, flat * gain), (circular, sine), (circular, cosine)]
        for index, values in kinds if len(circular) else kinds[:1]:
            columns.append(torch.zeros(len(weight), layout.dim, dtype=torch.float64))
            columns[-1][:, index] = values
    folded = MLP(
        sum(part.shape[1] for part in columns),
        None,
        width=trunk.width,
        depth=len(trunk.layers),
        residual=trunk.residual,
        layer_norm=not isinstance(trunk.norms[0], nn.Identity),
        generator=torch.Generator(),
    )
    folded.activation = trunk.activation
    own = trunk.state_dict()
    own["layers.0.weight"], own["layers.0.bias"] = torch.cat(columns, 1).float(), bias.float()
    folded.load_state_dict(own)
    return folded


def _exact(values: Tensor | nn.Module) -> Tensor:
    """In double precision, so that folding rounds once."""
    assert isinstance(values, Tensor)
    return values.detach().double()
