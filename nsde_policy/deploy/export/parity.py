"""Does an exported graph answer as the policy does? Asked with many states and seeds, as it will be run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from nsde_policy.deploy.export.plan_module import Chunk
from nsde_policy.deploy.runtime.metadata import ACTIONS, PATH, STD
from nsde_policy.errors import ExportError

TOLERANCE = 1e-5
"""Largest difference, in ranges of the demonstrations: float32 itself holds seven digits of a pixel."""
MARGIN = 0.1
"""States lie in the demonstrations' range, widened by this fraction of it on both sides."""

Answer = dict[str, np.ndarray]
Answerer = Callable[[list[np.ndarray]], Answer]
"""The inputs of a graph in order → its outputs by name."""


@dataclass(frozen=True)
class Parity:
    """How far a graph was from the policy at worst."""

    worst: float
    """In ranges of the demonstrations."""
    cases: int


def cases(chunk: Chunk, n: int, seed: int) -> Iterator[list[np.ndarray]]:
    """Inputs of the graph: states near the demonstrations that move as those do, and noise, all float32."""
    spec, rng = chunk.spec, np.random.default_rng(seed)
    low, high, pace = (np.array(values) for values in (spec.low, spec.high, spec.increment_std))
    for _ in range(n):
        now = low + (high - low) * rng.uniform(-MARGIN, 1 + MARGIN, len(low))
        before = pace * rng.standard_normal((spec.history - 1, len(low)))
        states = np.concatenate([now[None], now - before.cumsum(0)])
        noise = (
            rng.standard_normal(given.shape) if given.kind == "normal" else rng.random(given.shape)
            for given in chunk.inputs[1:]
        )
        yield [np.asarray(values, np.float32) for values in (states, *noise)]


def measure(chunk: Chunk, answer: Answerer, *, n: int = 256, seed: int = 0) -> Parity:
    """The largest difference over n cases; `ExportError` where it is too large."""
    scale = np.array(chunk.spec.high) - np.array(chunk.spec.low)
    scales = {ACTIONS: scale[chunk.spec.obs_dim :], PATH: scale, STD: scale[chunk.spec.obs_dim :]}
    worst = 0.0
    for inputs in cases(chunk, n, seed):
        expected = chunk.reference(*(torch.from_numpy(values) for values in inputs))
        found = answer(inputs)
        for name, tensor in zip((ACTIONS, PATH, STD), expected, strict=False):
            with np.errstate(invalid="ignore"):  # ∞ − ∞, which is counted as ∞
                difference = float(np.max(np.abs(found[name] - tensor.numpy()) / scales[name]))
            worst = max(worst, difference if np.isfinite(difference) else np.inf)
    if worst > TOLERANCE:
        raise ExportError(
            f"the exported graph differs from the policy by {worst:.2g} ranges of the demonstrations in "
            f"{n} cases, at most {TOLERANCE:g} is allowed; nothing was written"
        )
    return Parity(worst, n)
