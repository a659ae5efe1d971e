"""Neural SDE for video: dx = (f(X) + α d(X)) dt + g(X) dw for the newest frame x of the state X.

As in the paper's appendix, a state holds the last four frames, the network learns only the first difference
x_{t+1} - x_t, and the other three follow by subtraction. Losses and solver step are those of policies.

Deviation: the defaults are the square loss without interpolation, σ sampled per video, g not used in
sampling, a convolutional stem before the U-ViT, and a second stage of training on own predictions. The
paper's settings are the preset `paper`; in pixels they freeze the picture or let the network read the answer
from the interpolated state, see docs/results/notes.md.
"""

import math

import torch
from torch import Tensor

from nsde_policy.core import losses
from nsde_policy.core.networks import Outputs
from nsde_policy.core.sde import Coefficients, euler_maruyama_step

from .next_frame import (
    RGB_CHANNELS,
    PredictedStep,
    StepResult,
    VideoModel,
    differentiate_state,
)
from .settings import NeuralSDEVideoConfig, NeuralSDEVideoSampling, VideoSampling

FLOW_WEIGHT, DENOISER_WEIGHT, DIFFUSION_WEIGHT = 2.0, 0.5, 0.1
"""Weights of the losses, each averaged over the numbers of a frame."""
DELTA = 0.04
"""δ of the log loss, in squared standard deviations of the increments; on simulated collisions it is the
paper's 0.001 in pixels from -1 to 1."""
MAX_LOG_VARIANCE = 8.0
"""Limit on |log g²|, in units of the mean square change of a pixel."""


class NeuralSDEVideo(VideoModel):
    """Flow f, log g² and scaled score σ d from one network call."""

    heads = ("flow", "score", "log_variance")
    config: NeuralSDEVideoConfig

    @property
    def is_interpolated(self) -> bool:
        """Whether training states lie between two recorded ones."""
        return self.config.interpolation == "uniform"

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
        flow, velocity = out.drift.flatten(1), ((step.target - step.clean) / unit).flatten(1)
        predicted = step.state[:, :RGB_CHANNELS] + self._add_denoiser(out, config.sampling)
        weight = 1 / velocity.shape[1]
        delta = DELTA if config.flow_loss == "log" else math.inf
        compared = flow, velocity
        if step.unit_noise is None:
            compared = (predicted / unit).flatten(1), (step.target / unit).flatten(1)
        parts = {"flow": FLOW_WEIGHT * losses.flow_loss(*compared, delta=delta, weight=weight)}
        if config.denoiser:
            parts["denoiser"] = torch.zeros_like(parts["flow"])
            if step.unit_noise is not None:
                score, noise = out.score.flatten(1), step.unit_noise.flatten(1)
                parts["denoiser"] = DENOISER_WEIGHT * losses.denoiser_loss(score, noise, weight)
        if config.diffusion:
            nll = losses.diffusion_nll(out.log_variance.flatten(1), flow, velocity, 1.0, weight)
            parts["diffusion"] = DIFFUSION_WEIGHT * nll
        is_between = step.unit_noise is not None and self.is_interpolated
        return parts, None if is_between or config.sampling.diffusion else predicted

    def _add_denoiser(self, out: Outputs, sampling: NeuralSDEVideoSampling) -> Tensor:
        """Return f + α d in pixels per frame; the network's score is σ d, so its factor is α σ."""
        strength = sampling.alpha * self.noise_std if self.config.denoiser else 0.0
        return self.increment_std * out.drift + strength * out.score

    def predict(self, state: Tensor, *, sampling: VideoSampling, generator: torch.Generator) -> Tensor:
        """Take Euler-Maruyama steps to the next frame."""
        return self.solve(state, sampling=sampling, generator=generator)[:, :RGB_CHANNELS]

    def solve(self, state: Tensor, *, sampling: VideoSampling, generator: torch.Generator) -> Tensor:
        """Return the next state by Euler-Maruyama steps, in which older frames move at a constant speed."""
        assert isinstance(sampling, NeuralSDEVideoSampling)
        dt, x = state.new_full((), 1 / sampling.substeps), state
        for _ in range(sampling.substeps):
            out = self.run(x, with_diffusion=sampling.diffusion > 0)
            drift = differentiate_state(state, self._add_denoiser(out, sampling))
            diffusion, dw = torch.zeros_like(x), torch.zeros_like(x)
            if sampling.diffusion:
                std = self.increment_std * (0.5 * out.log_variance).exp()
                diffusion[:, :RGB_CHANNELS] = sampling.diffusion * std
                noise = torch.randn(std.shape, generator=generator, device=x.device)
                dw[:, :RGB_CHANNELS] = dt.sqrt() * noise
            x = euler_maruyama_step(x, Coefficients(drift, diffusion), dt, dw)
        return x
