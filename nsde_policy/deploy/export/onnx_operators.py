"""ONNX translations of torch operators that torch's exporter does not support."""

from collections.abc import Callable
from typing import Any

import torch

_INT64 = 7
"""ONNX element type of 64-bit integers."""


def build_translations() -> dict[Any, Callable[..., Any]]:
    """Return a translation table for `torch.onnx.export`; needs onnxscript."""
    import onnxscript

    op: Any = onnxscript.opset18

    def translate_cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:
        """Compute distances (rows, n) between points (rows, d) and (n, d)."""
        between = op.Sub(op.Unsqueeze(x1, [1]), op.Unsqueeze(x2, [0]))
        return op.Sqrt(op.ReduceSum(op.Mul(between, between), [2], keepdims=0))

    def translate_searchsorted(
        sorted_sequence: Any, values: Any, *, out_int32: bool = False, right: bool = False, **_: Any
    ) -> Any:
        """Count how many of (rows, n) are below each of (rows, m); compares all pairs."""
        ordered, asked = op.Unsqueeze(sorted_sequence, [1]), op.Unsqueeze(values, [2])
        below = op.LessOrEqual(ordered, asked) if right else op.Less(ordered, asked)
        return op.ReduceSum(op.Cast(below, to=_INT64), [2], keepdims=0)

    return {
        torch.ops.aten._cdist_forward.default: translate_cdist,
        torch.ops.aten.searchsorted.Tensor: translate_searchsorted,
    }
