"""The Neural SDE (section 3 and Appendix B): flow, diffusion and denoiser learned from pairs of states.

Units. Networks work with increments divided by their standard deviation s over one control period Δt₀:
f̂ = f Δt₀/s, log ĝ² = log(g² Δt₀/s²), d̂ = σ d with σ the blur. Everything public is in state units.

History. As in the paper's video experiment the state is X = (x_t, x_{t−Δt}, …), and only the first block is
learned; the others follow their neighbour, dh = (x − h)/Δt₀ dt. One solver step per control period then
shifts the history exactly, and several lag it by the same time.
"""

import math

import torch
from torch import Tensor, nn

from nsde_policy import losses
from nsde_policy.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.layout import LayoutSpec, StateLayout
from nsde_policy.models.interface import AbstractModel, LossParts, Stage
from nsde_policy.networks import MLP, AbstractNetworks, Outputs, SeparateNetworks, SharedTrunk
from nsde_policy.sde import (
    AbstractScoredSDE,
    AbstractSDE,
    Coefficients,
    ScoreCorrectedSDE,
    Strength,
    Terms,
    cancelling_strength,
    constant_strength,
    euler_maruyama,
    increment_log_prob,
    step_sizes,
)
from nsde_policy.targets import Transitions, draw_noise, flow_target, noise_scale, stack_history


class NeuralSDE(AbstractModel[Transitions]):
    """dx = (f(x) + α d(x)) dt + g(x) ⊙ dw with learned f, g, d (Eq. 22).

    States with history are (..., history·d), newest first, as `targets.stack_history` makes them.
    """

    noise_std: Tensor

    def __init__(
        self, config: NeuralSDEConfig, layout: LayoutSpec, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.layout = StateLayout(layout)
        self.register_buffer(
            "noise_std", noise_scale(config.noise, config.noise_kind, self.layout.increment_std)
        )
        self.networks = _networks(config, self.layout, generator)
        self.strength = (
            _mlp(config, self.layout, self.layout.dim, generator) if config.learned_strength else None
        )

    @property
    def dim(self) -> int:
        """Dimensions of one state, d."""
        return self.layout.dim

    # ---- training ---------------------------------------------------------------------------------------

    def loss(self, batch: Transitions, generator: torch.Generator | None = None) -> LossParts:
        """Algorithm 1 up to its updates: interpolate, blur, and what each part should have answered."""
        config, d = self.config, self.dim
        x_next = torch.cat([batch.x_next, batch.x[:, :-d]], dim=-1)
        target = flow_target(
            batch.x,
            self._blockwise_increment(batch.x, x_next),
            batch.dt,
            interpolation=config.interpolation,
            noise_std=self.noise_std.repeat(config.history),
            unit_noise=draw_noise(
                batch.x_next, history=config.history, kind=config.history_noise, generator=generator
            ),
            generator=generator,
        )
        features = self.features(target.x)
        out = self.outputs(features, generator)
        velocity = target.velocity[:, :d] * (config.dt / self.layout.increment_std)
        periods = batch.dt / config.dt
        parts = self._coefficient_losses(out, velocity, periods)
        if config.denoiser:
            noise = target.unit_noise[:, :d]
            parts["denoiser"] = losses.denoiser_loss(out.score, noise)
            if self.strength is not None:
                fraction = nn.functional.softplus(self.strength(features, generator))
                parts["strength"] = losses.strength_loss(fraction, out.score, noise)
        return LossParts(parts)

    def _coefficient_losses(self, out: Outputs, velocity: Tensor, dt: Tensor) -> dict[str, Tensor]:
        config = self.config
        if config.objective == "joint":
            return {"joint": losses.joint_nll(out.drift, out.log_variance, velocity, dt)}
        delta = config.delta if config.flow_loss == "log" else torch.inf
        flow = losses.flow_loss(out.drift, velocity, delta=delta)
        if config.diffusion_loss == "nll":
            diffusion = losses.diffusion_nll(out.log_variance, out.drift, velocity, dt)
        else:
            diffusion = losses.diffusion_squared_loss(out.log_variance.exp(), out.drift, velocity, dt)
        return {"flow": flow, "diffusion": diffusion}

    def stages(self) -> tuple[Stage, ...]:
        """Everything together, or f, then d (and α), then g, each with a network of its own."""
        config = self.config
        named = {"denoiser": config.denoiser, "strength": config.learned_strength}
        score = tuple(name for name, wanted in named.items() if wanted)
        if config.schedule == "together":
            coefficients = ("joint",) if config.objective == "joint" else ("flow", "diffusion")
            return (Stage((*coefficients, *score), tuple(self.parameters())),)
        flow = Stage(("flow",), tuple(self.networks.drift.parameters()))
        diffusion = Stage(("diffusion",), tuple(self.networks.log_variance.parameters()))
        pull = [*self.networks.score.parameters()]
        pull += [] if self.strength is None else [*self.strength.parameters()]
        return (flow, Stage(score, tuple(pull)), diffusion) if score else (flow, diffusion)

    # ---- what the networks see and say ------------------------------------------------------------------

    def features(self, x: Tensor) -> Tensor:
        """Network inputs for states with history, (..., history·d) → (..., history·features)."""
        return self.layout.features(self._blocks(x)).flatten(-2)

    def outputs(self, features: Tensor, generator: torch.Generator | None = None) -> Outputs:
        """What the networks say, in network units, the variance kept above its floor."""
        out: Outputs = self.networks(features, generator)
        floor = math.log(self.config.variance_floor)
        return out._replace(log_variance=floor + nn.functional.softplus(out.log_variance - floor))

    def _blockwise_increment(self, x: Tensor, x_next: Tensor) -> Tensor:
        return self.layout.increment(self._blocks(x), self._blocks(x_next)).flatten(-2)

    def _blocks(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.config.history, self.dim)

    # ---- sampling ---------------------------------------------------------------------------------------

    def sde(self, sampling: SamplingConfig | None = None) -> AbstractSDE:
        """The equation of states with history, (..., history·d), with the denoiser's pull as asked for."""
        sampling = self.config.sampling if sampling is None else sampling
        self.config.check_sampling(sampling)
        learned = LearnedSDE(self, diffusion_factor=sampling.diffusion)
        if sampling.denoiser == "off":
            return learned
        return ScoreCorrectedSDE(learned, self._strength(sampling))

    def _strength(self, sampling: SamplingConfig) -> Strength:
        """α of Eq. 22. A constant counts in full corrections σ² per control period, so that α has no unit.

        Deviation: the paper leaves the unit of α open. With α = 1 a step of one period adds σ² d(x): by
        Tweedie's formula it moves to the mean of the states that the blur could have come from.
        """
        if sampling.denoiser == "cancelling":
            return cancelling_strength(sampling.alpha)
        full = sampling.alpha * self.noise_std.square().repeat(self.config.history) / self.config.dt
        if sampling.denoiser == "constant":
            return constant_strength(full)

        def learned(x: Tensor, diffusion: Tensor) -> Tensor:
            assert self.strength is not None
            fraction: Tensor = nn.functional.softplus(self.strength(self.features(x)))
            return full * fraction.repeat(*[1] * (x.dim() - 1), self.config.history)

        return learned

    @torch.no_grad()
    def sample_paths(
        self,
        x0: Tensor,
        *,
        steps: int,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
        dt: float | Tensor | None = None,
        sampling: SamplingConfig | None = None,
    ) -> Tensor:
        """Sample one path per row of `x0` (..., history·d); (steps + 1, ..., d), the current state first.

        One network call per solver step, two where the strength is learned. `noise` may be given instead of a
        generator, (solver steps, ..., d); `dt` is the control period unless said otherwise.
        """
        sampling = self.config.sampling if sampling is None else sampling
        if noise is None:
            shape = (steps * sampling.substeps, *x0.shape[:-1], self.dim)
            noise = torch.randn(shape, generator=generator, dtype=x0.dtype, device=x0.device)
        older = noise.new_zeros(()).expand(*noise.shape[:-1], (self.config.history - 1) * self.dim)
        path = euler_maruyama(
            self.sde(sampling),
            x0,
            dt=self.config.dt if dt is None else dt,
            steps=steps,
            substeps=sampling.substeps,
            noise=torch.cat([noise, older], dim=-1),
        )
        return path[..., : self.dim]

    # ---- uncertainty ------------------------------------------------------------------------------------

    @torch.no_grad()
    def step_std(self, x: Tensor) -> Tensor:
        """How uncertain the next state is: g(x) √Δt over one control period, state units, (..., d)."""
        return LearnedSDE(self).diffusion(x)[..., : self.dim] * math.sqrt(self.config.dt)

    @torch.no_grad()
    def path_log_prob(
        self, path: Tensor, *, dt: float | Tensor | None = None, sampling: SamplingConfig | None = None
    ) -> Tensor:
        """log p(x₁ … x_n | x₀) of paths (n + 1, ..., d) at one solver step per state (Eq. 12 to 17); (...).

        Comparable between paths of one model, and with the spread a sampled path has. The history before x₀
        is x₀ itself; for paths with a known past, include it and subtract.
        """
        sizes = step_sizes(self.config.dt if dt is None else dt, len(path) - 1, path)
        at = self.sde(sampling).coefficients(stack_history(path[:-1], self.config.history))
        current = Coefficients(at.drift[..., : self.dim], at.diffusion[..., : self.dim])
        column = sizes.reshape(-1, *[1] * (path.dim() - 1))
        return increment_log_prob(current, self.layout.increment(path[:-1], path[1:]), column).sum(0)


def spread(paths: Tensor) -> Tensor:
    """How far apart sampled paths (steps + 1, n, ..., d) are: standard deviation over n, (steps + 1, ..., d).

    Sampled angles are not wrapped, so that it holds for them too.
    """
    return paths.std(dim=1)


class LearnedSDE(AbstractScoredSDE):
    """The learned terms in state units, for states with history; a view, it owns no weights."""

    def __init__(self, model: NeuralSDE, *, diffusion_factor: float = 1.0) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple: the view must not become a second owner of the weights
        self._factor = diffusion_factor

    def drift(self, x: Tensor) -> Tensor:
        """s f̂ / Δt₀ for the current state; older states follow their neighbour."""
        return self.terms(x).drift

    def diffusion(self, x: Tensor) -> Tensor:
        """s ĝ / √Δt₀ for the current state; older states have none."""
        return self.terms(x).diffusion

    def score(self, x: Tensor) -> Tensor:
        """d̂ / σ for the current state; older states are left alone."""
        return self.terms(x).score

    def coefficients(self, x: Tensor) -> Coefficients:
        """Drift and diffusion from one network call."""
        return Coefficients(*self.terms(x)[:2])

    def terms(self, x: Tensor) -> Terms:
        """All three from one network call."""
        (model,) = self._model
        scale, period, d = model.layout.increment_std, model.config.dt, model.dim
        out = model.outputs(model.features(x))
        drift = out.drift * (scale / period)
        diffusion = (0.5 * out.log_variance).exp() * (self._factor * scale / math.sqrt(period))
        score = out.score / model.noise_std
        if model.config.history == 1:
            return Terms(drift, diffusion, score)
        follow = model._blockwise_increment(x, torch.cat([x[..., :d], x[..., :-d]], dim=-1))[..., d:] / period
        still = torch.zeros_like(follow)
        return Terms(*(torch.cat(pair, -1) for pair in ((drift, follow), (diffusion, still), (score, still))))


def _networks(
    config: NeuralSDEConfig, layout: StateLayout, generator: torch.Generator | None
) -> AbstractNetworks:
    if config.network.kind == "shared":
        return SharedTrunk(_mlp(config, layout, None, generator), layout.dim, generator=generator)
    return SeparateNetworks(*(_mlp(config, layout, layout.dim, generator) for _ in range(3)))


def _mlp(
    config: NeuralSDEConfig, layout: StateLayout, outputs: int | None, generator: torch.Generator | None
) -> MLP:
    net = config.network
    return MLP(
        config.history * layout.feature_dim,
        outputs,
        width=net.width,
        depth=net.depth,
        residual=net.residual,
        layer_norm=net.layer_norm,
        dropout=net.dropout,
        activation=net.activation,
        generator=generator,
    )
