"""Operators of torch that its ONNX exporter has no words for, in words it has."""

from collections.abc import Callable
from typing import Any

import torch

_INT64 = 7
"""ONNX's number for 64-bit integers."""


def translations() -> dict[Any, Callable[..., Any]]:
    """What to write for each of them; needs onnxscript."""
    import onnxscript

    op: Any = onnxscript.opset18

    def euclidean_distance(x1: Any, x2: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:
        """Distances (rows, n) between points (rows, d) and (n, d), by differences."""
        between = op.Sub(op.Unsqueeze(x1, [1]), op.Unsqueeze(x2, [0]))
        return op.Sqrt(op.ReduceSum(op.Mul(between, between), [2], keepdims=0))

    def places_in_order(
        sorted_sequence: Any, values: Any, *, out_int32: bool = False, right: bool = False, **_: Any
    ) -> Any:
        """How many of (rows, n) are below, or up to, each of (rows, m): all are compared with all."""
        ordered, asked = op.Unsqueeze(sorted_sequence, [1]), op.Unsqueeze(values, [2])
        below = op.LessOrEqual(ordered, asked) if right else op.Less(ordered, asked)
        return op.ReduceSum(op.Cast(below, to=_INT64), [2], keepdims=0)

    return {
        torch.ops.aten._cdist_forward.default: euclidean_distance,
        torch.ops.aten.searchsorted.Tensor: places_in_order,
    }
