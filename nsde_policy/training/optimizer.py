"""The optimiser, its learning rate, and averaged weights; all of it can be captured in a CUDA graph."""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.optim.adamw import adamw

from nsde_policy.config import TrainConfig


class AdamW:
    """AdamW with a learning rate in a tensor.

    It calls the function behind `torch.optim.AdamW(fused=True)`. The class itself would import the compiler
    of torch, which takes as long as importing torch.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], config: TrainConfig, device: torch.device) -> None:
        self._parameters = parameters
        self._config = config
        self.rate = torch.zeros((), device=device)
        self.state = {
            "exp_avg": [torch.zeros_like(parameter) for parameter in parameters],
            "exp_avg_sq": [torch.zeros_like(parameter) for parameter in parameters],
            "step": [torch.zeros((), device=device) for _ in parameters],
        }
        """Moments and steps of each parameter."""

    def zero_grad(self) -> None:
        """Drop the gradients of all parameters."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        used = [i for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        means, squares, steps = ([tensors[i] for i in used] for tensors in self.state.values())
        beta1, beta2 = self._config.betas
        adamw(
            [self._parameters[i] for i in used],
            [parameter.grad for parameter in self._parameters if parameter.grad is not None],
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=self.rate,
            weight_decay=self._config.weight_decay,
            eps=1e-8,
            maximize=False,
        )


class WeightAverage:
    """Exponential moving averages of weights, with a decay in a tensor."""

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self._parameters = parameters
        self.decay = torch.zeros((), device=device)
        self.means = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Add the present weights to the averages."""
        torch._foreach_mul_(self.means, self.decay)
        torch._foreach_add_(self.means, torch._foreach_mul(list(self._parameters), 1 - self.decay))

    @torch.no_grad()
    def copy_to_weights(self) -> None:
        """Replace the weights by their averages."""
        for parameter, mean in zip(self._parameters, self.means, strict=True):
            parameter.copy_(mean)

    def is_finite(self) -> bool:
        """Return whether every average is finite."""
        return not self.means or bool(torch.stack([mean.isfinite().all() for mean in self.means]).all())


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate: linear warm-up, then cosine decay to 0."""
    steps, warm = config.steps, max(1, round(config.warmup * config.steps))
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def averaging_decay(step: int, config: TrainConfig) -> float:
    """Return the decay of the averaged weights, which soon drops the random initial weights from them."""
    if config.ema_power > 0:
        return min(config.ema, 1 - math.pow(1 + step, -config.ema_power))
    return min(config.ema, (1 + step) / (10 + step))
