"""Compare an exported graph with its policy on random states and noise."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from nsde_policy.deploy.export.plan_module import PlanTracer
from nsde_policy.deploy.runtime.metadata import ACTIONS, PATH, STD
from nsde_policy.errors import ExportError

PARITY_TOLERANCE = 1e-5
"""Largest allowed difference, in ranges of the demonstrations."""
STATE_MARGIN = 0.1
"""States are drawn from the demonstrated range, widened by this fraction on both sides."""

GraphOutputs = dict[str, np.ndarray]
RunGraph = Callable[[list[np.ndarray]], GraphOutputs]
"""Run a graph: its inputs in order → its outputs by name."""


def draw_inputs(tracer: PlanTracer, cases: int, seed: int) -> Iterator[list[np.ndarray]]:
    """Draw inputs of the graph: plausible states with history, and noise, all float32."""
    spec, rng = tracer.spec, np.random.default_rng(seed)
    low, high, step = (np.array(values) for values in (spec.low, spec.high, spec.increment_std))
    for _ in range(cases):
        now = low + (high - low) * rng.uniform(-STATE_MARGIN, 1 + STATE_MARGIN, len(low))
        before = step * rng.standard_normal((spec.history - 1, len(low)))
        states = np.concatenate([now[None], now - before.cumsum(0)])
        noise = (
            rng.standard_normal(given.shape) if given.kind == "normal" else rng.random(given.shape)
            for given in tracer.inputs[1:]
        )
        yield [np.asarray(values, np.float32) for values in (states, *noise)]


def measure_parity(tracer: PlanTracer, run_graph: RunGraph, *, cases: int = 256, seed: int = 0) -> float:
    """Measure the largest difference between a graph and its policy, in ranges of the demonstrations.

    Raises:
        ExportError: If it exceeds `PARITY_TOLERANCE`.
    """
    spec = tracer.spec
    scale = np.array(spec.high) - np.array(spec.low)
    scales = {ACTIONS: scale[spec.obs_dim :], PATH: scale, STD: scale[spec.obs_dim :]}
    worst = 0.0
    for inputs in draw_inputs(tracer, cases, seed):
        expected = tracer.reference(*(torch.from_numpy(values) for values in inputs))
        found = run_graph(inputs)
        for name, tensor in zip((ACTIONS, PATH, STD), expected, strict=False):
            with np.errstate(invalid="ignore"):  # ∞ − ∞ counts as ∞
                difference = float(np.max(np.abs(found[name] - tensor.numpy()) / scales[name]))
            worst = max(worst, difference if np.isfinite(difference) else np.inf)
    if worst > PARITY_TOLERANCE:
        raise ExportError(
            f"the exported graph differs from the policy by {worst:.2g} ranges of the demonstrations in "
            f"{cases} cases, at most {PARITY_TOLERANCE:g} is allowed; nothing was written"
        )
    return worst
