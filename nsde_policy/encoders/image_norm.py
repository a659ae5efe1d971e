"""Group normalisation of images whose channels are adjacent in memory, for training on CUDA."""

from typing import Any

import torch
from torch import Tensor, nn


class ImageNorm(nn.GroupNorm):
    """GroupNorm; on CUDA without torch's copies between memory layouts, in the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (n, channels, h, w)."""
        return self.normalize_channels_last(x) if x.is_cuda else super().forward(x)

    def normalize_channels_last(self, x: Tensor) -> Tensor:
        """Normalise images whose channels are adjacent in memory."""
        n, channels, height, width = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(n, height * width, self.num_groups, -1)
        parameters = (each.view(self.num_groups, -1) for each in (self.weight, self.bias))
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = _Normalize.apply(pixels, *parameters, self.eps)  # type: ignore[no-untyped-call]
        return out.view(n, height, width, channels).permute(0, 3, 1, 2)


class _Normalize(torch.autograd.Function):
    """Normalise pixels (n, pixels, groups, channels of a group) with few passes over memory.

    Sums are in float32; autograd would keep and move several float32 copies of every image.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalise each group; save what `backward` needs."""
        size = x.shape[1] * x.shape[3]
        mean = x.sum((1, 3), keepdim=True, dtype=torch.float32) / size
        norm = torch.linalg.vector_norm(x, dim=(1, 3), keepdim=True, dtype=torch.float32)
        inverse_std = ((norm.square() / size - mean.square()).clamp(min=0) + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, inverse_std)
        scale = inverse_std * weight
        return torch.addcmul(bias - mean * scale, x, scale, out=torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of the pixels, weight and bias."""
        x, weight, mean, inverse_std = ctx.saved_tensors
        (grad,) = grads
        size = x.shape[1] * x.shape[3]
        sums = grad.sum(1, keepdim=True, dtype=torch.float32)
        products = (grad * x).sum(1, keepdim=True, dtype=torch.float32)
        scaled = (products - mean * sums) * inverse_std  # sums of gradient times normalised value, by channel
        shared = (weight * scaled).sum(3, keepdim=True) / size * inverse_std.square()
        constant = mean * shared - inverse_std / size * (weight * sums).sum(3, keepdim=True)
        moved = torch.addcmul(constant, x, -shared)
        gradient = torch.addcmul(moved, grad, inverse_std * weight, out=torch.empty_like(x))
        return gradient, scaled.sum((0, 1)), sums.sum((0, 1)), None
