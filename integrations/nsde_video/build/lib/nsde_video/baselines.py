"""Flow Matching and PFI for video: the next frame is reached along a path of frames, given the state."""

import abc

import torch
from torch import Tensor

from .next_frame import RGB_CHANNELS, PredictedStep, StepResult, VideoModel
from .settings import VideoSampling

EPSILON = 0.3
"""Strength ε of the noise of PFI between two frames."""


class PathModel(VideoModel):
    """The network predicts the velocity at a frame x between the start of a path and the next frame."""

    extra_frames = 1
    has_time = True

    def velocity(self, state: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Return the predicted velocity at x and times (n,)."""
        (head,) = self.outputs.values()
        velocity: Tensor = head(self.network(torch.cat([state, x], dim=1), time)).float()
        return velocity

    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the square error of the velocity at a random time."""
        time = torch.rand(len(step.state), generator=generator, device=step.state.device)
        noise = torch.randn(step.target.shape, generator=generator, device=step.state.device)
        s = time[:, None, None, None]
        x, velocity = self.sample_path(step.state[:, :RGB_CHANNELS], step.target, s, noise)
        return {self.heads[0]: (self.velocity(step.state, x, time) - velocity).square().mean()}, None

    @abc.abstractmethod
    def sample_path(self, newest: Tensor, target: Tensor, s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frame at time s of the path, (n, 1, 1, 1), and its velocity, for standard noise."""


class FlowMatchingVideo(PathModel):
    """Flow Matching (Lipman et al. 2022): a straight path from noise to the next frame.

    z_s = (1 - s) noise + s x_{t+1}; the network predicts the velocity x_{t+1} - noise.
    """

    heads = ("velocity",)

    def sample_path(self, newest: Tensor, target: Tensor, s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return z_s and the velocity."""
        return (1 - s) * noise + s * target, target - noise

    def predict(self, state: Tensor, *, sampling: VideoSampling, generator: torch.Generator) -> Tensor:
        """Take Euler steps from noise to the next frame."""
        steps = sampling.substeps
        x = torch.randn(state[:, :RGB_CHANNELS].shape, generator=generator, device=state.device)
        for k in range(steps):
            x = x + self.velocity(state, x, torch.full((len(x),), k / steps, device=x.device)) / steps
        return x


class InterpolantsVideo(PathModel):
    """PFI, probabilistic forecasting with interpolants (Chen et al. 2024): an SDE from x_t to x_{t+1}.

    I_s = (1 - s) x_t + s x_{t+1} + ε (1 - s) W_s, where W_s is a Wiener process; the network predicts the
    drift b = x_{t+1} - x_t - ε W_s, and dX = b ds + ε (1 - s) dW leads from x_t to a sample of x_{t+1}.
    """

    heads = ("drift",)

    def sample_path(self, newest: Tensor, target: Tensor, s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return I_s and the drift."""
        wiener = EPSILON * s.sqrt() * noise
        return (1 - s) * newest + s * target + (1 - s) * wiener, target - newest - wiener

    def predict(self, state: Tensor, *, sampling: VideoSampling, generator: torch.Generator) -> Tensor:
        """Take Euler-Maruyama steps from the newest frame to the next."""
        steps, x = sampling.substeps, state[:, :RGB_CHANNELS]
        for k in range(steps):
            x = x + self.velocity(state, x, torch.full((len(x),), k / steps, device=x.device)) / steps
            if k + 1 < steps:  # no later step would remove the noise of the last one
                noise = torch.randn(x.shape, generator=generator, device=x.device)
                x = x + EPSILON * (1 - k / steps) * steps**-0.5 * noise
        return x
