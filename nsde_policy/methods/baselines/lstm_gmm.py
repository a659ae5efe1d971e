"""LSTM-GMM: a recurrent policy that outputs a mixture of Gaussians (BC-RNN of Mandlekar et al. 2021).

The low-dimensional baseline of Robomimic, which is also the LSTM-GMM of the Diffusion Policy paper: two LSTM
layers of 400 units, over ten policy periods, then five diagonal Gaussians over the action, in units of half
its range. Its input is the observation alone.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.bounds import Fraction, Length, NonNegative, Positive, Size
from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.batches import Windows
from nsde_policy.core.networks import Dropout, linear, weights_from
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import add_noise

from ..base import BatchRng, PolicyModel, StepLogProb, choose_sampling
from ..registry import register_method

LOW_NOISE = 1e-4
"""Standard deviation of every component when sampled with low noise, in half ranges of the action."""


@dataclass(frozen=True)
class LSTMGMMSampling(Sampling):
    """Sampling from the mixture."""

    noise: Literal["low", "full"] = "low"
    """Sample a component and take its mean (to 1e-4), or sample from the component."""


@dataclass(frozen=True)
class LSTMGMMConfig(WindowConfig):
    """Settings of LSTM-GMM."""

    tunable = ("noise",)

    history: Length = 10
    """Number of states in the input, including the current one."""
    horizon: Length = 10
    """Actions of a window; equal to history."""
    hidden: Size = 400
    """Units per LSTM layer."""
    layers: Size = 2
    """Number of LSTM layers."""
    modes: Size = 5
    """Gaussians in the mixture."""
    min_std: Positive = 1e-4
    """Smallest standard deviation of a component in training, in half ranges of the action."""
    dropout: Fraction = 0.0
    """Dropout probability of each layer's outputs in training; 0 in the original."""
    noise: NonNegative = 0.0
    """Noise on the input states in training, in standard deviations of the increments; 0 in the original."""
    sampling: LSTMGMMSampling = field(default_factory=LSTMGMMSampling)
    """Default settings of sampling."""

    def __post_init__(self) -> None:
        super().__post_init__()
        same = self.horizon == self.history
        require(self, same, f"need horizon == history, got {self.horizon} and {self.history}")


class Mixture(NamedTuple):
    """Σₖ wₖ N(μₖ, diag σₖ²): one mixture for each leading index."""

    logits: Tensor
    """log wₖ up to a constant, (..., modes)."""
    mean: Tensor
    """μₖ, (..., modes, dim)."""
    std: Tensor
    """σₖ, (..., modes, dim)."""

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return log Σₖ wₖ N(x; μₖ, σₖ²), (...), of points (..., dim)."""
        z = (x.unsqueeze(-2) - self.mean) / self.std
        log_density = -(0.5 * z.square() + self.std.log() + 0.5 * math.log(2 * math.pi)).sum(-1)
        return (self.logits.log_softmax(-1) + log_density).logsumexp(-1)

    def sample(self, uniform: Tensor, normal: Tensor) -> Tensor:
        """Sample points (..., dim): `uniform` (..., 1) selects the component, `normal` the point in it."""
        below = self.logits.softmax(-1).cumsum(-1)[..., :-1]
        index = (uniform >= below).sum(-1)[..., None, None].expand_as(self.mean[..., :1, :])
        mean, std = (values.gather(-2, index).squeeze(-2) for values in (self.mean, self.std))
        return mean + std * normal


PRESETS = {
    "default": Preset(
        LSTMGMMConfig(dropout=0.1, noise=1.0),
        TrainConfig(steps=60_000, batch_size=256, learning_rate=3e-4),
        chunk=1,
    ),
    "fast": Preset(
        LSTMGMMConfig(hidden=96, dropout=0.05, noise=1.0),
        TrainConfig(steps=10_000, batch_size=128, learning_rate=1e-3),
        chunk=1,
    ),
}
"""`default` has the original sizes and, against overfitting, noise, dropout, weight decay and averaged
weights."""


@register_method("lstm_gmm", title="LSTM-GMM", config=LSTMGMMConfig, presets=PRESETS)
class LSTMGMM(PolicyModel[Windows]):
    """p(aₜ | observations of the window up to t), for every t of the window.

    Deviation: the original keeps the LSTM state between policy periods and resets it every ten. Here each
    plan processes the last ten observations, so that there is no hidden state between calls and the network
    always has as much context as at the end of a training window.
    """

    has_likelihood = True

    def __init__(self, config: LSTMGMMConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: LSTMGMMConfig = config
        self.layout = StateLayout(spec)
        sizes = [self.layout.obs_feature_dim, *[config.hidden] * (config.layers - 1)]
        with weights_from(generator):
            self.lstm = nn.ModuleList(nn.LSTM(size, config.hidden, batch_first=True) for size in sizes)
        self.dropout = Dropout(config.dropout)
        self.head = linear(config.hidden, config.modes * (1 + 2 * spec.act_dim), generator)

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the mean negative log likelihood of all actions of the windows, in half ranges."""
        states = batch.states
        if self.config.noise > 0:
            states = add_noise(states, self.config.noise * self.layout.increment_std, generator)
        mixture = self._predict(self._run_lstm(states, generator))
        return {"nll": -mixture.log_likelihood(self.layout.to_unit(batch.actions)).mean()}

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Sample one action from the mixture at the current state."""
        require(self, steps == 1, f"a plan holds one action, got steps {steps}")
        mixture = self._sampled_mixture(states, sampling)
        action = mixture.sample(rng.uniform(1), rng.normal(self.layout.spec.act_dim))
        return self.layout.from_unit(action).unsqueeze(1)

    @torch.no_grad()
    def log_prob_step(
        self, states: Tensor, x_next: Tensor, *, sampling: Sampling | None = None
    ) -> StepLogProb:
        """Return the log-density of the action under the mixture at the current state."""
        obs_dim = self.layout.spec.obs_dim
        mixture = self._sampled_mixture(states, sampling)
        half_range = (self.layout.high - self.layout.low)[obs_dim:] / 2
        unit = self.layout.to_unit(x_next[:, obs_dim:])
        return StepLogProb(mixture.log_likelihood(unit) - half_range.log().sum())

    def learned_sampling(self, sampling: Sampling | None = None) -> LSTMGMMSampling:
        """Return the settings with the learned spread of each component."""
        return replace(choose_sampling(self.config.sampling, sampling), noise="full")

    def _sampled_mixture(self, states: Tensor, sampling: Sampling | None) -> Mixture:
        """Return the mixture at the current state, with the spread that the settings ask for."""
        mixture = self._predict(self._run_lstm(states)[:, -1])
        if choose_sampling(self.config.sampling, sampling).noise == "low":
            return mixture._replace(std=torch.full_like(mixture.std, LOW_NOISE))
        return mixture

    def _run_lstm(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the output of the last layer at each state, oldest first, (rows, history, hidden)."""
        h = self.layout.obs_features(states.flip(1))
        masks = self.dropout.sample_mask((len(self.lstm), *h.shape[:-1], self.config.hidden), h, generator)
        for i, layer in enumerate(self.lstm):
            h = layer(h)[0]
            if masks is not None:
                h = h * masks[i]
        return h

    def _predict(self, h: Tensor) -> Mixture:
        """Return the mixture over actions given (..., hidden)."""
        modes, dim = self.config.modes, self.layout.spec.act_dim
        logits, mean, std = self.head(h).float().split([modes, modes * dim, modes * dim], dim=-1)
        return Mixture(
            logits,
            mean.unflatten(-1, (modes, dim)).tanh(),
            functional.softplus(std.unflatten(-1, (modes, dim))) + self.config.min_std,
        )
