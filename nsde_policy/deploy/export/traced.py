"""A function of a policy that becomes a graph, and the comparison of the two."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nsde_policy.deploy.runtime.graph import EncoderGraph, Graph
from nsde_policy.deploy.runtime.metadata import EncoderRecord, GraphRecord
from nsde_policy.errors import NsdePolicyError


@dataclass(frozen=True)
class TracedFunction:
    """A function that becomes a graph."""

    record: GraphRecord | EncoderRecord
    """Names and shapes of inputs and outputs."""
    module: nn.Module
    """What is traced as a graph."""
    reference: Callable[..., tuple[Tensor, ...]]
    """What the graph is compared with: takes the inputs of the graph, and returns its outputs."""
    draw_inputs: Callable[[int], Iterator[list[np.ndarray]]]
    """Draws inputs of the graph for a number of cases."""
    scales: Mapping[str, np.ndarray]
    """Unit of the difference of each output, by name."""
    tolerance: float
    """Largest allowed difference."""

    def draw_example(self) -> tuple[Tensor, ...]:
        """Return inputs of one call."""
        return tuple(map(torch.from_numpy, next(self.draw_inputs(1))))

    @torch.no_grad()
    def check_parity(self, graph: Graph | EncoderGraph, cases: int) -> float:
        """Measure the largest difference between the outputs of a graph and of the reference.

        Raises:
            NsdePolicyError: If it exceeds the tolerance.
        """
        worst = 0.0
        for inputs in self.draw_inputs(cases):
            expected = self.reference(*map(torch.from_numpy, inputs))
            for buffer, values in zip(graph.inputs.values(), inputs, strict=True):
                buffer[...] = values
            graph.run()
            for (name, found), tensor in zip(graph.outputs.items(), expected, strict=True):
                with np.errstate(invalid="ignore"):  # ∞ − ∞ counts as ∞
                    difference = float(np.max(np.abs(found - tensor.numpy()) / self.scales[name]))
                worst = max(worst, difference if np.isfinite(difference) else np.inf)
        if worst > self.tolerance:
            raise NsdePolicyError(
                f"the graph of {self.record.describe()} differs from the policy by {worst:.2g} ranges of the "
                f"demonstrations, at most {self.tolerance:g} is allowed; nothing was written"
            )
        return worst
