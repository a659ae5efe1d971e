"""PFI, probabilistic forecasting with interpolants (Chen et al. 2024): an SDE from x_t to x_{t+1}.

I_s = (1 - s) x_t + s x_{t+1} + ε (1 - s) W_s, where W_s is a Wiener process; the network predicts the drift
b = x_{t+1} - x_t - ε W_s, and dX = b ds + ε (1 - s) dW leads from x_t to a sample of x_{t+1}.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nsde_policy.bounds import NonNegative
from nsde_policy.methods.base import choose_sampling
from nsde_policy.methods.registry import register_method
from nsde_policy.video.base import RGB_CHANNELS, PredictedStep, StepResult, VideoModel
from nsde_policy.video.config import VIDEO_METHODS, VideoModelConfig, VideoSampling, make_joint_presets


@dataclass(frozen=True)
class InterpolantsConfig(VideoModelConfig):
    """Settings of forecasting with interpolants."""

    epsilon: NonNegative = 0.3
    """Strength ε of the noise between two frames."""


PRESETS = make_joint_presets(InterpolantsConfig())


@register_method(
    "interpolants", title="PFI", config=InterpolantsConfig, presets=PRESETS, registry=VIDEO_METHODS
)
class InterpolantsVideo(VideoModel):
    """Drift from the newest frame to the next."""

    extra_frames = 1
    has_time = True
    heads = ("drift",)
    losses = ("drift",)
    config: InterpolantsConfig

    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the square error of the drift at a random time, from the newest frame of the state on."""
        state, target = step.state, step.target
        start, epsilon = state[:, :RGB_CHANNELS], self.config.epsilon
        time = torch.rand(len(state), generator=generator, device=state.device)
        share = time[:, None, None, None]
        wiener = share.sqrt() * torch.randn(target.shape, generator=generator, device=state.device)
        between = (1 - share) * start + share * target + epsilon * (1 - share) * wiener
        found = self.run_network(torch.cat([state, between], dim=1), time)
        return {"drift": (found["drift"] - (target - start - epsilon * wiener)).square().mean()}, None

    def predict(
        self, state: Tensor, *, sampling: VideoSampling | None = None, generator: torch.Generator
    ) -> Tensor:
        """Take Euler-Maruyama steps from the newest frame to the next."""
        steps, x = choose_sampling(self.config.sampling, sampling).substeps, state[:, :RGB_CHANNELS]
        for k in range(steps):
            time = torch.full((len(state),), k / steps, device=state.device)
            found = self.run_network(torch.cat([state, x], dim=1), time)
            x = x + found["drift"] / steps
            if k + 1 < steps:  # no later step would remove the noise of the last one
                noise = torch.randn(x.shape, generator=generator, device=x.device)
                x = x + self.config.epsilon * (1 - k / steps) * steps**-0.5 * noise
        return x
