"""Planning latency: all policies in one process, in turns, one observation at a time, one thread.

Every policy plans once per round, so that other load on the machine affects all of them alike.
"""

import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from nsde_policy.config import Sampling
from nsde_policy.encoders.base_model import EncoderModel
from nsde_policy.eval.compare.result import ACTIONS
from nsde_policy.inference.loading import load_encoder, load_model
from nsde_policy.inference.torch_threads import use_threads
from nsde_policy.methods.base import Draws, PolicyModel
from nsde_policy.run_directory import RunDirectory, RunRecord

MIN_ROUNDS = 3
"""Fewest timed plans of a policy."""


class LatencyRow(msgspec.Struct, frozen=True):
    """Latency of one contender, milliseconds."""

    method: str
    """Name of the contender."""
    chunk: int
    """Actions of one plan."""
    calls_per_chunk: int
    """Sequential network calls for all actions."""
    parameters: int
    machine: str
    median_ms: float
    p99_ms: float
    first_action_ms: float
    n: int
    """Number of timed plans."""


class Contender:
    """A model to time, which plans from zeros: the time hardly depends on the state.

    Args:
        name: Name in the results.
        record: Record of its run.
        model: The model.
        sampling: How it samples.
        device: Torch device to time it on.
        encoder: Encodes the camera frames that are new in each plan; None for a policy without cameras.
    """

    def __init__(
        self,
        name: str,
        record: RunRecord,
        model: PolicyModel[Any],
        sampling: Sampling,
        device: str = "cpu",
        encoder: EncoderModel | None = None,
    ) -> None:
        self.name = name
        self.record = record
        self.sampling = sampling
        self.model = model.eval().to(device)
        self.states = torch.zeros(1, record.config.model.history, record.spec.dim, device=device)
        self._encoder = None if encoder is None else encoder.eval().to(device)

    @classmethod
    def load(cls, path: Path, name: str) -> "Contender":
        """Load a trained run, sampled by its own settings."""
        run = RunDirectory(path)
        record, model = load_model(run)
        return cls(name, record, model, model.config.sampling, encoder=load_encoder(run, record))

    def plan_sizes(self, actions: int) -> list[int]:
        """Return the number of actions of each plan that together give `actions`."""
        longest = min(self.record.config.chunk, self.model.config.longest_chunk or actions, actions)
        whole, rest = divmod(actions, longest)
        return [longest] * whole + ([rest] if rest else [])

    def network_calls(self, actions: int) -> int:
        """Count the sequential network calls for `actions`."""
        return sum(self.model.network_calls(size, self.sampling) for size in self.plan_sizes(actions))

    def measure(self, actions: int, draws: Draws) -> float:
        """Plan `actions` and return the seconds it took, the copy to the CPU included."""
        started = time.perf_counter()
        for size in self.plan_sizes(actions):
            self._encode(min(self.record.config.model.history, size))
            self.model.plan(self.states, steps=size, draws=draws, sampling=self.sampling).cpu()
        return time.perf_counter() - started

    def _encode(self, count: int) -> None:
        """Encode so many frames of each camera, which are black: the time does not depend on them."""
        if self._encoder is None:
            return
        size, device = self._encoder.size, self.states.device
        frame = torch.zeros(count, size, size, 3, dtype=torch.uint8, device=device)
        values = torch.zeros(count, self.record.spec.plain_dim, device=device)
        self._encoder(values, *[frame] * len(self.record.cameras)).cpu()


@torch.no_grad()
def measure_latency(
    contenders: Sequence[Contender], *, rounds: int = 30, budget_s: float = 20.0
) -> list[LatencyRow]:
    """Time `ACTIONS` actions of all contenders in turns, after a warm-up.

    A contender that would take more than `budget_s` skips some rounds, evenly, but takes part in at least
    `MIN_ROUNDS`.
    """
    chunks: list[list[float]] = [[] for _ in contenders]
    firsts: list[list[float]] = [[] for _ in contenders]
    draws = [Draws([torch.Generator().manual_seed(0)], each.states.device) for each in contenders]
    with use_threads(1):
        turns = []
        for contender, random in zip(contenders, draws, strict=True):
            contender.measure(1, random)
            once = contender.measure(1, random) + contender.measure(ACTIONS, random)
            turns.append(min(rounds, max(MIN_ROUNDS, int(budget_s / once))))
        for now in range(rounds):
            for i, contender in enumerate(contenders):
                if (now + 1) * turns[i] // rounds > now * turns[i] // rounds:
                    chunks[i].append(contender.measure(ACTIONS, draws[i]))
                    firsts[i].append(contender.measure(1, draws[i]))
    return [
        LatencyRow(
            method=each.name,
            chunk=each.record.config.chunk,
            calls_per_chunk=each.network_calls(ACTIONS),
            parameters=sum(parameter.numel() for parameter in each.model.parameters()),
            machine=device_name(str(each.states.device)),
            median_ms=_to_milliseconds(float(np.median(chunk))),
            p99_ms=_to_milliseconds(float(np.percentile(chunk, 99))),
            first_action_ms=_to_milliseconds(float(np.median(first))),
            n=len(chunk),
        )
        for each, chunk, first in zip(contenders, chunks, firsts, strict=True)
    ]


def _to_milliseconds(seconds: float) -> float:
    """Return milliseconds with five significant digits."""
    return float(f"{1e3 * seconds:.5g}")


def device_name(device: str) -> str:
    """Return the name of the processor behind a torch device."""
    if device.startswith("cuda"):
        name: str = torch.cuda.get_device_name(device)
        return name
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine() or "CPU"
