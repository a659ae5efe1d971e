"""Tests for the group normalisation of images whose channels are adjacent in memory."""

import pytest
import torch
from torch.nn import functional as F

from nsde_policy.encoders.image_norm import ImageNorm


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_values_and_gradients_are_those_of_group_norm(dtype: torch.dtype, atol: float):
    generator = torch.Generator().manual_seed(0)
    norm = ImageNorm(2, 32)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    x, slope = (3 + torch.randn(3, 32, 5, 7, generator=generator) for _ in range(2))
    x = x.to(memory_format=torch.channels_last)
    inputs = x.to(dtype, copy=True).requires_grad_(), *norm.parameters()
    found = norm.normalize_channels_last(inputs[0])
    gradients = torch.autograd.grad(found, inputs, slope.to(dtype))
    copies = x.clone().requires_grad_(), *norm.parameters()
    expected = F.group_norm(copies[0], 2, *copies[1:])
    right = torch.autograd.grad(expected, copies, slope)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    for one, other in zip((found, *gradients), (expected, *right), strict=True):
        scale = float(other.detach().abs().max())
        torch.testing.assert_close(one.float() / scale, other / scale, atol=atol, rtol=0)
