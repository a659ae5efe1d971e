"""Neural SDE for video: dx = (f(X) + α d(X)) dt + g(X) dw for the newest frame x of the state X.

As in the paper's appendix, a state holds the last four frames, the network learns only the first difference
x_{t+1} - x_t, and the other three follow by subtraction.

Deviation: the defaults are the square loss without interpolation, σ drawn per video, g not used in sampling,
a convolutional stem before the U-ViT, and a second phase of training on own predictions. The paper's settings
(`flow_loss="log"`, `interpolation="uniform"`, `noise="fixed"`) are options; in pixels they freeze the picture
or let the network read the answer from the interpolated state, see docs/video.md.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nsde_policy.video.base import PredictedStep, StepResult, VideoModel
from nsde_policy.video.methods.neural_sde.config import NeuralSDEVideoConfig
from nsde_policy.video.pixels import RGB_CHANNELS

SCORE_WEIGHT, DIFFUSION_WEIGHT = 0.5, 0.1
"""Weights of the losses of denoiser and diffusion beside that of the flow."""
MAX_LOG_VARIANCE = 8.0
"""Limit on |log g²|, in units of the mean square change of a pixel."""


class NeuralSDEVideo(VideoModel):
    """Flow f, scaled score d and log g² from one network call."""

    heads = ("flow", "score", "log_variance")
    config: NeuralSDEVideoConfig

    @property
    def loss_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Losses of the parts that the settings ask for."""
        parts = {"flow": True, "score": self.config.denoiser, "diffusion": self.config.diffusion}
        return tuple(name for name, is_used in parts.items() if is_used)

    @property
    def noise_std(self) -> float:
        """Root mean square of the noise on the state, the unit of the score."""
        sigma = self.config.context_noise
        return sigma if self.config.noise == "fixed" else sigma / 3**0.5

    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the losses of flow, score and diffusion.

        From recorded states, f is compared with the recorded change, and d with the noise on the state. From
        own predictions, which are never interpolated, the sampled next frame is compared with the recorded
        one by the loss of the flow, and that of the score is 0.
        """
        state, clean, target, is_first = step
        noise = state[:, :RGB_CHANNELS] - clean
        is_between = is_first and self.config.interpolation == "uniform"
        if is_between:
            part = torch.rand((len(state), 1, 1, 1), generator=generator, device=state.device)
            state = state + part * self._difference(state, target - clean)
        change = target - clean
        log_variance, flow, score = self._run(state, with_diffusion=self.config.diffusion)
        losses = {"flow": self._flow_loss(flow, change)}
        if self.config.denoiser:
            losses["score"] = SCORE_WEIGHT * (score + noise / self.noise_std).square().mean()
        alpha = self.config.alpha if self.config.denoiser else 0.0
        predicted = state[:, :RGB_CHANNELS] + flow + alpha * self.noise_std * score
        if not is_first:  # a state of own predictions: only the error of the next frame counts
            losses = {name: torch.zeros_like(value) for name, value in losses.items()}
            losses["flow"] = self._flow_loss(predicted, target)
        if self.config.diffusion:
            error = ((change - flow) / self.increment_std).detach().square()
            likelihood = 0.5 * (error * (-log_variance).exp() + log_variance).mean()
            losses["diffusion"] = DIFFUSION_WEIGHT * likelihood
        is_sample = not is_between and not self.config.diffusion_scale
        return StepResult(losses, predicted if is_sample else None)

    def _flow_loss(self, found: Tensor, true: Tensor) -> Tensor:
        error = (found - true).square()
        if self.config.flow_loss == "log":
            return 0.5 * (error + self.config.delta).log().mean()
        return (error / self.increment_std.square()).mean()

    def _run(self, state: Tensor, *, with_diffusion: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return log g² in units of the mean square change, f in pixels, and d in units of the noise.

        Without the diffusion, log g² is 0. One convolution draws flow and score, which is faster than two.
        """
        features = self.network(state)
        heads = [self.outputs["flow"], self.outputs["score"]]
        weight, bias = (torch.cat([getattr(head, name) for head in heads]) for name in ("weight", "bias"))
        flow, score = F.conv2d(features, weight, bias, padding=1).float().chunk(2, dim=1)
        log_variance = flow.new_zeros(())
        if with_diffusion:
            log_variance = self.outputs["log_variance"](features.detach()).float()
            log_variance = log_variance.clamp(-MAX_LOG_VARIANCE, MAX_LOG_VARIANCE)
        return log_variance, flow * self.increment_std, score

    def _difference(self, state: Tensor, first: Tensor) -> Tensor:
        """Return the change of the state over one frame: the first difference, the others by subtraction."""
        return torch.cat([first, state[:, :-RGB_CHANNELS] - state[:, RGB_CHANNELS:]], dim=1)

    def predict(
        self,
        state: Tensor,
        *,
        calls: int | None = None,
        generator: torch.Generator,
        alpha: float | None = None,
        diffusion_scale: float | None = None,
        **options: Any,
    ) -> Tensor:
        """Take Euler-Maruyama steps of 1 / calls frame, each with 1 / calls of flow and denoiser."""
        steps = calls or self.config.calls
        alpha = self.config.alpha if alpha is None else alpha
        scale = self.config.diffusion_scale if diffusion_scale is None else diffusion_scale
        for path in self.substeps(state, steps, generator, alpha if self.config.denoiser else 0.0, scale):
            state = path
        return state[:, :RGB_CHANNELS]

    def substeps(
        self,
        state: Tensor,
        steps: int,
        generator: torch.Generator,
        alpha: float,
        diffusion_scale: float,
    ) -> list[Tensor]:
        """Return the states after each Euler-Maruyama step of 1 / steps frame."""
        others = self._difference(state, state[:, :RGB_CHANNELS])[:, RGB_CHANNELS:]
        found = []
        for _ in range(steps):
            log_variance, flow, score = self._run(state, with_diffusion=diffusion_scale > 0)
            first = (flow + alpha * self.noise_std * score) / steps
            if diffusion_scale:
                std = self.increment_std * (0.5 * log_variance).exp() * (diffusion_scale / steps**0.5)
                first = first + std * torch.randn(first.shape, generator=generator, device=first.device)
            state = state + torch.cat([first, others / steps], dim=1)
            found.append(state)
        return found
