"""Flow matching (Lipman et al. 2022): the next frame is transported from noise, given the state.

z_s = (1 - s) noise + s x_{t+1}; the network predicts the velocity x_{t+1} - noise.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsde_policy.bounds import Count
from nsde_policy.video.base import PredictedStep, StepResult, VideoModel
from nsde_policy.video.config import VideoModelConfig
from nsde_policy.video.pixels import RGB_CHANNELS
from nsde_policy.video.registry import register_video_method


@dataclass(frozen=True)
class FlowMatchingVideoConfig(VideoModelConfig):
    """Settings of flow matching for video."""

    calls: Count = 2
    """Network calls per frame when sampling: Euler steps."""


@register_video_method("flow_matching", title="Flow Matching", config=FlowMatchingVideoConfig)
class FlowMatchingVideo(VideoModel):
    """Velocity from noise to the next frame."""

    extra_frames, has_time, heads, loss_names = 1, True, ("velocity",), ("velocity",)

    def step_losses(self, step: PredictedStep, generator: torch.Generator) -> StepResult:
        """Return the square error of the velocity at a random time."""
        state, _, target, _ = step
        time = torch.rand(len(state), generator=generator, device=state.device)
        noise = torch.randn(target.shape, generator=generator, device=state.device)
        share = time[:, None, None, None]
        found = self.run_network(torch.cat([state, (1 - share) * noise + share * target], dim=1), time)
        return StepResult({"velocity": (found["velocity"] - (target - noise)).square().mean()})

    def predict(
        self, state: Tensor, *, calls: int | None = None, generator: torch.Generator, **options: Any
    ) -> Tensor:
        """Take Euler steps from noise to the next frame."""
        steps = calls or self.config.calls
        x = torch.randn(
            (len(state), RGB_CHANNELS, *state.shape[2:]), generator=generator, device=state.device
        )
        for k in range(steps):
            time = torch.full((len(state),), k / steps, device=state.device)
            found = self.run_network(torch.cat([state, x], dim=1), time)
            x = x + found["velocity"] / steps
        return x
