"""The Neural SDE (section 3 and Appendix B): flow, diffusion and denoiser learned from pairs of states.

`NeuralSDE.loss` is what training minimises, `NeuralSDE.sde` the equation that is sampled, and
`LearnedSDE` the networks behind both.

Units. Networks work with increments divided by their standard deviation s over one policy period Δt₀:
f̂ = f Δt₀/s, log ĝ² = log(g² Δt₀/s²), d̂ = σ d with σ of the noise. Coefficients are in state units.

History. As in the paper's video experiment the state is X = (x_t, x_{t−Δt}, …), and only the first block is
learned; the others follow their neighbour, dh = (x − h)/Δt₀ dt. One solver step per policy period then
shifts the history exactly, and several lag it by the same time.
"""

import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from nsde_policy.config import Sampling
from nsde_policy.core import losses
from nsde_policy.core.batches import Transitions
from nsde_policy.core.networks import MLP, Networks, Outputs
from nsde_policy.core.sde import SDE, Coefficients, Terms, euler_maruyama, increment_log_prob
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import (
    noise_scale,
    sample_noise,
    sample_training_point,
    stack_history,
)
from nsde_policy.errors import ConfigError

from ..base import (
    BatchRng,
    PolicyModel,
    StepLogProb,
    StepPrediction,
    choose_sampling,
)
from .config import NeuralSDEConfig, SamplingConfig
from .folded_plan import FoldedPlan

FEATURE_WEIGHT = 4.0
"""Weight of all features of images together in the losses; at most 1 for each."""


class NeuralSDE(PolicyModel[Transitions]):
    """dx = (f(x) + α d(x)) dt + g(x) ⊙ dw with learned f, g, d (Eq. 22).

    States with history are (..., history·d), newest first, as `targets.stack_history` returns them. Public
    arguments and results are in state units.
    """

    training_view = "transitions"
    predicts_states = True
    reports_std = True
    has_likelihood = True

    dimension_weight: Tensor
    """Weight of each dimension of a state in the losses, (d,), or 1 for all."""

    def __init__(self, config: NeuralSDEConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: NeuralSDEConfig = config
        self.dim = spec.dim
        self.learned = LearnedSDE(config, spec, generator)
        self.register_buffer("dimension_weight", _weigh_features(spec), persistent=False)

    @property
    def layout(self) -> StateLayout:
        """Dimensions and scales of a state."""
        return self.learned.layout

    def loss(self, batch: Transitions, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of flow, diffusion and denoiser, each evaluated at states with added noise."""
        config, sde, d = self.config, self.learned, self.dim
        x_next = torch.cat([batch.x_next, batch.x[:, :-d]], dim=-1)
        point = sample_training_point(
            batch.x,
            sde.increment(batch.x, x_next),
            batch.dt,
            interpolation=config.interpolation,
            noise_std=sde.noise_std.repeat(config.history),
            unit_noise=sample_noise(
                batch.x_next, history=config.history, older=config.history_noise, generator=generator
            ),
            generator=generator,
        )
        out = sde.outputs(sde.features(point.noisy_x), generator)
        velocity = point.velocity[:, :d] * (config.dt / self.layout.increment_std)
        dt, weight = batch.dt / config.dt, batch.weight * self.dimension_weight
        delta = config.delta if config.flow_loss == "log" else math.inf
        parts = {"flow": losses.flow_loss(out.drift, velocity, delta=delta, weight=weight)}
        if config.diffusion_loss == "nll":
            parts["diffusion"] = losses.diffusion_nll(out.log_variance, out.drift, velocity, dt, weight)
        else:
            variance = out.log_variance.exp()
            parts["diffusion"] = losses.diffusion_squared_loss(variance, out.drift, velocity, dt, weight)
        if config.denoiser:
            unit_noise = point.unit_noise[:, :d]
            parts["denoiser"] = losses.denoiser_loss(out.score, unit_noise, self.dimension_weight)
        return parts

    def sde(self, sampling: Sampling | None = None) -> SDE:
        """Return f(x) + α d(x) and g(x) as they are sampled (Eq. 22), for states (..., history·d).

        Deviation: the paper leaves the unit of α open. Here it counts full corrections σ² per policy period.
        With α = 1 a step of one period adds σ² d(x): by Tweedie's formula it moves to the mean of the states
        that the noise could have come from.
        """
        sampling = choose_sampling(self.config.sampling, sampling)
        self.config.check_sampling(sampling)
        alpha, factor = sampling.alpha, sampling.diffusion
        full_correction = self.learned.noise_std.square().repeat(self.config.history) / self.config.dt

        def coefficients(x: Tensor) -> Coefficients:
            drift, diffusion, score = self.learned.terms(x)
            if alpha:
                drift = drift + alpha * full_correction * score
            return Coefficients(drift, factor * diffusion)

        return coefficients

    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Return the actions of one sampled path per row."""
        paths = self.sample_futures(states, steps=steps, rng=rng, sampling=sampling)
        return paths[:, 1:, self.layout.spec.obs_dim :]

    def sample_futures(
        self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None
    ) -> Tensor:
        """Sample one path per row, the present state first, (rows, steps + 1, d)."""
        sampling = choose_sampling(self.config.sampling, sampling)
        noise = rng.normal(steps * sampling.substeps, self.dim).transpose(0, 1)
        x0 = states.flatten(-2)
        return self.sample_paths(x0, steps=steps, noise=noise, sampling=sampling).transpose(0, 1)

    def fold_for_export(self, sampling: Sampling) -> nn.Module | None:
        """Return the solver with its constants in the weights; None if the equation does not allow it."""
        sampling = choose_sampling(self.config.sampling, sampling)
        lags = self.config.history > 1 and sampling.substeps > 1
        if lags or self.config.network.kind != "shared":
            return None
        sde = self.learned
        return FoldedPlan(self.config, sde.layout, sde.networks, noise_std=sde.noise_std, sampling=sampling)

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Count one call per solver step."""
        return steps * choose_sampling(self.config.sampling, sampling).substeps

    @torch.inference_mode()
    def sample_paths(
        self, x0: Tensor, *, steps: int, noise: Tensor, sampling: Sampling | None = None
    ) -> Tensor:
        """Sample one path per row of `x0` (..., history·d); (steps + 1, ..., d), the current state first.

        The noise is standard normal, (solver steps, ..., d). A step takes one policy period.
        """
        sampling = choose_sampling(self.config.sampling, sampling)
        none = noise.new_zeros(*noise.shape[:-1], x0.shape[-1] - self.dim)  # older states have no noise
        path = euler_maruyama(
            self.sde(sampling),
            x0,
            dt=self.config.dt,
            steps=steps,
            noise=torch.cat([noise, none], dim=-1),
            substeps=sampling.substeps,
        )
        return path[..., : self.dim]

    @torch.no_grad()
    def futures_std(self, states: Tensor, paths: Tensor, *, sampling: Sampling | None = None) -> Tensor:
        """Return σ = g(x) √Δt of each step of sampled paths, (rows, steps, d), from one network call.

        It is the learned σ, also where plans are sampled with less noise or none.
        """
        visited = torch.cat([states[:, 1:].flip(1), paths[:, :-1]], dim=1).transpose(0, 1)
        stacked = stack_history(visited, self.config.history)[self.config.history - 1 :]
        learned = self._newest_coefficients(stacked, self.learned_sampling(sampling))
        std = learned.diffusion * math.sqrt(self.config.dt)
        return std.transpose(0, 1)

    @torch.no_grad()
    def predict_step(self, states: Tensor, *, sampling: Sampling | None = None) -> StepPrediction:
        """Return x + (f + αd) Δt and g √Δt, one Euler–Maruyama step of a policy period."""
        at = self._newest_coefficients(states.flatten(-2), sampling)
        dt = self.config.dt
        return StepPrediction(states[:, 0] + at.drift * dt, at.diffusion * math.sqrt(dt))

    @torch.no_grad()
    def scale_std(self, factor: Tensor) -> None:
        """Multiply g(x) by a factor per dimension, (d,): it is added to the bias of log g².

        The floor of the variance stays where it is, so a σ that is close to it changes less.
        """
        head = self.learned.networks.log_variance
        layer: nn.Linear = head.output if isinstance(head, MLP) else head  # type: ignore[assignment]
        layer.bias.add_(2 * factor.log().to(layer.bias))

    @torch.no_grad()
    def log_prob_step(
        self, states: Tensor, x_next: Tensor, *, sampling: Sampling | None = None
    ) -> StepLogProb:
        """Return log N(Δx; (f + αd) Δt, g² Δt) (Eq. 12 to 14), of the action alone and of the whole state."""
        at = self._newest_coefficients(states.flatten(-2), sampling)
        increment = self.layout.increment(states[:, 0], x_next)
        dt, act = self.config.dt, slice(self.layout.spec.obs_dim, None)
        action = Coefficients(at.drift[:, act], at.diffusion[:, act])
        return StepLogProb(
            increment_log_prob(action, increment[:, act], dt), increment_log_prob(at, increment, dt)
        )

    def learned_sampling(self, sampling: Sampling | None = None) -> SamplingConfig:
        """Return the settings with the learned diffusion, factor 1, and the denoiser as sampled."""
        return replace(choose_sampling(self.config.sampling, sampling), diffusion=1.0)

    def widen_sampling(self, factor: float) -> SamplingConfig:
        """Return the settings with `factor` times the diffusion."""
        sampling = self.config.sampling
        return replace(sampling, diffusion=factor * sampling.diffusion)

    def _newest_coefficients(self, x: Tensor, sampling: Sampling | None) -> Coefficients:
        """Return drift and diffusion of the newest state of (..., history·d), (..., d) each."""
        drift, diffusion = self.sde(sampling)(x)
        return Coefficients(drift[..., : self.dim], diffusion[..., : self.dim])


class LearnedSDE(nn.Module):
    """Learned f, g and d of states with history, (..., history·d), newest first."""

    noise_std: Tensor

    def __init__(self, config: NeuralSDEConfig, spec: StateSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.policy_period = config.dt
        self.history = config.history
        self.variance_floor = config.variance_floor
        self.layout = StateLayout(spec)
        noise_std = noise_scale(config.noise, config.noise_kind, self.layout.increment_std)
        self.register_buffer("noise_std", noise_std * _expand_factors(config, spec))
        inputs = config.history * self.layout.feature_dim
        self.networks = Networks(inputs, self.layout.dim, config.network, generator=generator)
        if config.step_inputs:
            self._add_step_inputs(config.step_inputs, generator)

    @torch.no_grad()
    def _add_step_inputs(self, strength: float, generator: torch.Generator) -> None:
        """Add random weights of the steps between successive states, scaled to 1, to the first layers.

        Steps are differences of inputs, so this changes initial weights only, not the network: inputs are
        scaled to the range of a state, and without it training takes long to find that small differences
        matter.
        """
        linear, size = self.layout.linear_index, self.layout.feature_dim
        scale = ((self.layout.high - self.layout.low) / (2 * self.layout.increment_std))[linear]
        for trunk in self.networks.modules():
            if isinstance(trunk, MLP):
                weight = cast(Tensor, trunk.layers[0].weight)
                for lag in range(self.history - 1):
                    step_weight = torch.empty(len(weight), len(linear)).uniform_(-1, 1, generator=generator)
                    step_weight *= strength * scale / math.sqrt(len(linear))
                    weight[:, lag * size : lag * size + len(linear)] += step_weight
                    weight[:, (lag + 1) * size : (lag + 1) * size + len(linear)] -= step_weight

    def features(self, x: Tensor) -> Tensor:
        """Return the inputs of the networks, (..., history·features).

        Older states are inputs as states, not as steps between them: scaled to their spread, steps would
        dominate the input, and a policy that relies on its last step copies it.
        """
        return self.layout.features(self._blocks(x)).flatten(-2)

    def outputs(self, features: Tensor, generator: torch.Generator | None = None) -> Outputs:
        """Evaluate the networks for the current state, in network units, the variance above its floor."""
        out: Outputs = self.networks(features, generator)
        floor = math.log(self.variance_floor)
        return out._replace(log_variance=floor + nn.functional.softplus(out.log_variance - floor))

    def increment(self, x: Tensor, x_next: Tensor) -> Tensor:
        """Return x_next − x for states with history, on the circle for angles."""
        return self.layout.increment(self._blocks(x), self._blocks(x_next)).flatten(-2)

    def terms(self, x: Tensor) -> Terms:
        """Return drift, diffusion and score of a state with its history, (..., history·d).

        Older states follow their neighbour: their drift is the difference, their diffusion and score are 0.
        """
        out = self.outputs(self.features(x))
        std = self.layout.increment_std
        drift = out.drift * (std / self.policy_period)
        diffusion = (0.5 * out.log_variance).exp() * (std / math.sqrt(self.policy_period))
        score = out.score / self.noise_std
        if self.history == 1:
            return Terms(drift, diffusion, score)
        blocks = self._blocks(x)
        follow = (
            self.layout.increment(blocks[..., 1:, :], blocks[..., :-1, :]).flatten(-2) / self.policy_period
        )
        still = torch.zeros_like(follow)
        return Terms(
            torch.cat([drift, follow], dim=-1),
            torch.cat([diffusion, still], dim=-1),
            torch.cat([score, still], dim=-1),
        )

    def _blocks(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.history, self.layout.dim)


def _expand_factors(config: NeuralSDEConfig, spec: StateSpec) -> Tensor:
    """Return a factor on the noise of each dimension of a state; 1 for image features."""
    factors = config.noise_factors
    if len(factors) > spec.plain_dim:
        raise ConfigError(
            f"model.noise_factors has {len(factors)} numbers for {spec.plain_dim} observation columns"
        )
    ones = [1.0] * (spec.obs_dim - len(factors))
    return torch.tensor([*factors, *ones, *[config.action_noise] * spec.act_dim])


def _weigh_features(spec: StateSpec) -> Tensor:
    """Return the weight of each dimension: 1, and less for features of images if there are many.

    Features are redundant; without this, they would outweigh the action.
    """
    if not spec.image_features:
        return torch.ones(())
    weight = torch.ones(spec.dim)
    weight[spec.plain_dim : spec.obs_dim] = min(1.0, FEATURE_WEIGHT / spec.image_features)
    return weight
