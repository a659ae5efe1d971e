"""L1 Flow: flow matching in two network calls (Song et al. 2025, arXiv 2511.17898).

Noise x₀ and actions x₁ are joined by the line x_t = (1 − t) x₀ + t x₁. A network predicts x₁ from x_t and is
trained with an absolute loss. The velocity of the flow is (x̂₁ − x_t) / (1 − t). One step of it, from t = 0 to
t*, chooses a mode; the prediction from there is the plan. With x₀ = 0 these are the calls of `mip.py`.

Deviation: the network is an MLP on the task's observation. The paper uses a U-Net on images.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from nsde_policy.bounds import Length
from nsde_policy.config import Sampling
from nsde_policy.core.batches import Windows

from ..base import BatchRng
from ..registry import register_method
from .mip import MIP, MIPConfig

UNIFORM_FRACTION = 0.01
"""Fraction of training times that are uniform in [0, 1]; the others are sigmoids of normal numbers."""


@dataclass(frozen=True)
class L1FlowConfig(MIPConfig):
    """Settings of L1 Flow."""

    horizon: Length = 16
    """Predicted actions (T_p), counted from the oldest state in the input."""
    time: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """t* of the second call, to which the flow is integrated."""


PRESETS = L1FlowConfig().make_presets()


@register_method("l1_flow", title="L1 Flow", config=L1FlowConfig, presets=PRESETS)
class L1Flow(MIP):
    """x̂₁ = network(states, x_t, t), the median of the actions that lead through x_t."""

    samples = True

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the mean absolute error of the actions, in half ranges, at one time per window."""
        features = self.layout.features(batch.states).flatten(-2)
        actions = self.layout.to_unit(batch.actions).flatten(-2)
        noise = torch.randn(actions.shape, generator=generator, device=actions.device)
        times = sample_times(len(actions), generator)
        shown = times * actions + (1 - times) * noise
        output = self.network(torch.cat([features, shown, times], dim=-1), generator)
        return {"absolute": (output.float() - actions).abs().mean()}

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Integrate the flow from noise to t* in one step, then predict the actions."""
        return self._predict_twice(states, rng.normal(self.chunk), steps)


def sample_times(n: int, generator: torch.Generator) -> Tensor:
    """Sample training times (n, 1) from a logit-normal distribution mixed with a uniform one."""
    middle = torch.randn((n, 1), generator=generator, device=generator.device).sigmoid()
    uniform, choice = torch.rand((2, n, 1), generator=generator, device=generator.device)
    return torch.where(choice < UNIFORM_FRACTION, uniform, middle)
