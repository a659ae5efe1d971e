"""Comparison of an exported graph with what it was traced from."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from nsde_policy.deploy.runtime.graph import EncoderGraph, Graph


@torch.no_grad()
def measure_difference(
    graph: Graph | EncoderGraph,
    reference: Callable[..., tuple[Tensor, ...]],
    cases: Iterable[list[np.ndarray]],
    scales: Mapping[str, np.ndarray],
) -> float:
    """Measure the largest difference between the outputs of a graph and of a function.

    Args:
        graph: A loaded graph.
        reference: Takes the inputs of the graph as tensors, and returns its outputs.
        cases: Inputs of the graph.
        scales: Unit of the difference of each output, by name.

    Returns:
        The difference, infinite if an output is not finite.
    """
    worst = 0.0
    for inputs in cases:
        expected = reference(*map(torch.from_numpy, inputs))
        for buffer, values in zip(graph.inputs.values(), inputs, strict=True):
            buffer[...] = values
        graph.run()
        for (name, found), tensor in zip(graph.outputs.items(), expected, strict=True):
            with np.errstate(invalid="ignore"):  # ∞ − ∞ counts as ∞
                difference = float(np.max(np.abs(found - tensor.numpy()) / scales[name]))
            worst = max(worst, difference if np.isfinite(difference) else np.inf)
    return worst
