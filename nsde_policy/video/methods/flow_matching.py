"""Flow matching (Lipman et al. 2022): the next frame is transported from noise, given the state.

z_s = (1 - s) noise + s x_{t+1}; the network predicts the velocity x_{t+1} - noise.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsde_policy.methods.base import choose_sampling
from nsde_policy.methods.registry import register_method
from nsde_policy.video.base import RGB_CHANNELS, PredictedStep, StepResult, VideoModel
from nsde_policy.video.config import VIDEO_METHODS, VideoModelConfig, VideoSampling, make_joint_presets


@dataclass(frozen=True)
class FlowMatchingVideoConfig(VideoModelConfig):
    """Settings of flow matching for video."""

    sampling: VideoSampling = field(default_factory=lambda: VideoSampling(substeps=2))
    """How frames are sampled: by Euler steps."""


@register_method(
    "flow_matching",
    title="Flow Matching",
    config=FlowMatchingVideoConfig,
    presets=make_joint_presets(FlowMatchingVideoConfig()),
    registry=VIDEO_METHODS,
)
class FlowMatchingVideo(VideoModel):
    """Velocity from noise to the next frame."""

    extra_frames = 1
    has_time = True
    heads = ("velocity",)
    losses = ("velocity",)

    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the square error of the velocity at a random time."""
        state, target = step.state, step.target
        time = torch.rand(len(state), generator=generator, device=state.device)
        noise = torch.randn(target.shape, generator=generator, device=state.device)
        share = time[:, None, None, None]
        found = self.run_network(torch.cat([state, (1 - share) * noise + share * target], dim=1), time)
        return {"velocity": (found["velocity"] - (target - noise)).square().mean()}, None

    def predict(
        self, state: Tensor, *, sampling: VideoSampling | None = None, generator: torch.Generator
    ) -> Tensor:
        """Take Euler steps from noise to the next frame."""
        steps = choose_sampling(self.config.sampling, sampling).substeps
        x = torch.randn(
            (len(state), RGB_CHANNELS, *state.shape[2:]), generator=generator, device=state.device
        )
        for k in range(steps):
            time = torch.full((len(state),), k / steps, device=state.device)
            found = self.run_network(torch.cat([state, x], dim=1), time)
            x = x + found["velocity"] / steps
        return x
