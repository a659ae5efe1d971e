"""Neural SDE for video: dx = (f(X) + α d(X)) dt + g(X) dw for the newest frame x of the state X.

As in the paper's appendix, a state holds the last four frames, the network learns only the first difference
x_{t+1} - x_t, and the other three follow by subtraction. Targets, losses and solver are those of policies.

Deviation: the defaults are the square loss without interpolation, σ drawn per video, g not used in sampling,
a convolutional stem before the U-ViT, and a second stage of training on own predictions. The paper's settings
are the preset `paper`; in pixels they freeze the picture or let the network read the answer from the
interpolated state, see docs/results/notes.md.
"""

import math

import torch
from torch import Tensor

from nsde_policy.core import losses
from nsde_policy.core.networks import Outputs
from nsde_policy.core.sde import AbstractSDE, Coefficients, euler_maruyama
from nsde_policy.core.targets import Interpolation
from nsde_policy.methods.base import choose_sampling
from nsde_policy.video.base import RGB_CHANNELS, PredictedStep, StepResult, VideoModel, differentiate_state
from nsde_policy.video.config import VideoSampling
from nsde_policy.video.methods.neural_sde.config import NeuralSDEVideoConfig, NeuralSDEVideoSampling

FLOW_WEIGHT, DENOISER_WEIGHT, DIFFUSION_WEIGHT = 2.0, 0.5, 0.1
"""Weights of the losses, each averaged over the numbers of a frame."""
MAX_LOG_VARIANCE = 8.0
"""Limit on |log g²|, in units of the mean square change of a pixel."""


class NeuralSDEVideo(VideoModel):
    """Flow f, log g² and scaled score σ d from one network call."""

    heads = ("flow", "score", "log_variance")
    config: NeuralSDEVideoConfig

    @property
    def losses(self) -> tuple[str, ...]:  # type: ignore[override]
        """Losses of the parts that the settings ask for."""
        parts = {"flow": True, "denoiser": self.config.denoiser, "diffusion": self.config.diffusion}
        return tuple(name for name, is_used in parts.items() if is_used)

    @property
    def interpolation(self) -> Interpolation:  # type: ignore[override]
        """Whether training states lie between two recorded ones."""
        return self.config.interpolation

    def run(self, state: Tensor, *, with_diffusion: bool) -> Outputs:
        """Return f and log g² in units of the usual change, and σ d; without the diffusion, log g² is 0."""
        features = self.network(state)
        flow, score = (self.outputs[name](features).float() for name in ("flow", "score"))
        log_variance = torch.zeros_like(flow)
        if with_diffusion:
            log_variance = self.outputs["log_variance"](features.detach()).float()
            log_variance = log_variance.clamp(-MAX_LOG_VARIANCE, MAX_LOG_VARIANCE)
        return Outputs(flow, log_variance, score)

    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the losses of flow, denoiser and diffusion.

        From recorded states, f is compared with the recorded change, and d with the noise on the state. From
        own predictions, which are never interpolated, the sampled next frame is compared with the recorded
        one by the loss of the flow, and the loss of the denoiser is 0.
        """
        config, unit = self.config, self.increment_std
        out = self.run(step.state, with_diffusion=config.diffusion)
        velocity = ((step.target - step.clean) / unit).flatten(1)
        weight = 1 / velocity.shape[1]
        drift = unit * out.drift + self._strength(config.sampling) * out.score
        predicted = step.state[:, :RGB_CHANNELS] + drift
        delta = config.delta if config.flow_loss == "log" else math.inf
        compared = out.drift.flatten(1), velocity
        if step.unit_noise is None:
            compared = (predicted / unit).flatten(1), (step.target / unit).flatten(1)
        parts = {"flow": FLOW_WEIGHT * losses.flow_loss(*compared, delta=delta, weight=weight)}
        if config.denoiser:
            parts["denoiser"] = torch.zeros_like(parts["flow"])
            if step.unit_noise is not None:
                score, noise = out.score.flatten(1), step.unit_noise.flatten(1)
                parts["denoiser"] = DENOISER_WEIGHT * losses.denoiser_loss(score, noise, weight)
        if config.diffusion:
            variance, drift = out.log_variance.flatten(1), out.drift.flatten(1)
            parts["diffusion"] = DIFFUSION_WEIGHT * losses.diffusion_nll(
                variance, drift, velocity, 1.0, weight
            )
        is_between = step.unit_noise is not None and config.interpolation == "uniform"
        return parts, None if is_between or config.sampling.diffusion else predicted

    def _strength(self, sampling: NeuralSDEVideoSampling) -> float:
        """Return α σ, the strength of the scaled score: α σ² of the score itself."""
        return sampling.alpha * self.noise_std if self.config.denoiser else 0.0

    def predict(
        self, state: Tensor, *, sampling: VideoSampling | None = None, generator: torch.Generator
    ) -> Tensor:
        """Take Euler-Maruyama steps to the next frame."""
        return self.solve(state, sampling=sampling, generator=generator)[-1, :, :RGB_CHANNELS]

    def solve(
        self, state: Tensor, *, sampling: VideoSampling | None = None, generator: torch.Generator
    ) -> Tensor:
        """Return the state before and after each Euler-Maruyama step of one frame, (substeps + 1, n, …)."""
        chosen = choose_sampling(self.config.sampling, sampling)
        steps = chosen.substeps
        noise = state.new_zeros(()).expand(steps, *state.shape)
        if chosen.diffusion:
            shape = state[:, :RGB_CHANNELS].shape
            drawn = [torch.randn(shape, generator=generator, device=state.device) for _ in range(steps)]
            noise = torch.cat([torch.stack(drawn), noise[:, :, RGB_CHANNELS:]], dim=2)
        return euler_maruyama(_FrameSDE(self, state, chosen), state, dt=1 / steps, steps=steps, noise=noise)


class _FrameSDE(AbstractSDE):
    """The learned equation of the newest frame; older frames move at a constant speed until the next one."""

    def __init__(self, model: NeuralSDEVideo, state: Tensor, sampling: NeuralSDEVideoSampling) -> None:
        super().__init__()
        self._model = model
        self._start = state
        self._sampling = sampling

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return drift and diffusion of all frames of the state."""
        model, factor = self._model, self._sampling.diffusion
        out = model.run(x, with_diffusion=factor > 0)
        drift = model.increment_std * out.drift + model._strength(self._sampling) * out.score
        diffusion = torch.zeros_like(x)
        if factor:
            diffusion[:, :RGB_CHANNELS] = factor * model.increment_std * (0.5 * out.log_variance).exp()
        return Coefficients(differentiate_state(self._start, drift), diffusion)
