"""Planning latency: all policies in one process, in turns, one observation at a time, one thread.

Every policy plans once per round, so that other load on the machine affects all of them alike.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nsde_policy.config import Sampling
from nsde_policy.eval.compare.result import ACTIONS
from nsde_policy.eval.machine import device_name
from nsde_policy.interface.planner import Plan
from nsde_policy.policy.policy import Policy
from nsde_policy.torch_threads import use_threads

MIN_ROUNDS = 3
"""Fewest timed plans of a policy."""


class Contender:
    """A policy to time, which plans from zeros: the time hardly depends on the state.

    A policy that selects plans is timed at its goal, where it compares them.
    """

    def __init__(
        self, name: str, policy: Policy, sampling: Sampling | None = None, device: str = "cpu"
    ) -> None:
        self.name, self.policy, self.sampling, self.device = name, policy.to(device), sampling, device
        policy.model.eval()
        obs = np.zeros(policy.spec.obs_dim)
        if policy.selector is not None:
            obs[list(policy.rule.columns)] = policy.selector.goal.cpu().numpy()
        self._history = policy.spec.new_history()
        self._history.add_observation(obs)
        self._generator = torch.Generator().manual_seed(0)

    def plan_sizes(self, actions: int) -> list[int]:
        """Return the number of actions of each plan that together give `actions`."""
        longest = min(self.policy.chunk, self.policy.model.config.longest_chunk or actions, actions)
        whole, rest = divmod(actions, longest)
        return [longest] * whole + ([rest] if rest else [])

    def plan(self, actions: int) -> list[Plan]:
        """Plan `actions`, encoding the camera frames that are new in each plan."""
        plans: list[Plan] = []
        for size in self.plan_sizes(actions):
            self._encode(min(self.policy.spec.history, size))
            plans += self.policy.plan_batch(
                [self._history], generators=[self._generator], steps=size, sampling=self.sampling
            )
        return plans

    def measure(self, actions: int) -> float:
        """Plan `actions` and return the seconds it took, the copy to the CPU included."""
        started = time.perf_counter()
        self.plan(actions)
        return time.perf_counter() - started

    def network_calls(self, actions: int) -> int:
        """Count the sequential network calls for `actions`."""
        return sum(self.policy.count_calls(plan, self.sampling) for plan in self.plan(actions))

    def _encode(self, count: int) -> None:
        """Encode so many frames of each camera, which are black: the time does not depend on them."""
        if (encoder := self.policy.encoder) is None:
            return
        size, spec = encoder.size, self.policy.spec
        frame = torch.zeros(count, size, size, 3, dtype=torch.uint8, device=self.device)
        values = torch.zeros(count, spec.plain_dim, device=self.device)
        encoder(values, *[frame] * len(spec.cameras)).cpu()


@torch.no_grad()
def measure_latency(
    contenders: Sequence[Contender], *, rounds: int = 30, budget_s: float = 20.0
) -> list[dict[str, Any]]:
    """Time `ACTIONS` actions of all contenders in turns, after a warm-up.

    A contender that would take more than `budget_s` skips some rounds, evenly, but takes part in at least
    `MIN_ROUNDS`.
    """
    chunks: list[list[float]] = [[] for _ in contenders]
    firsts: list[list[float]] = [[] for _ in contenders]
    with use_threads(1):
        turns, calls = [], []
        for contender in contenders:
            calls.append(contender.network_calls(ACTIONS))  # and warm up
            once = contender.measure(1) + contender.measure(ACTIONS)
            turns.append(min(rounds, max(MIN_ROUNDS, int(budget_s / once))))
        for now in range(rounds):
            for i, contender in enumerate(contenders):
                if (now + 1) * turns[i] // rounds > now * turns[i] // rounds:
                    chunks[i].append(contender.measure(ACTIONS))
                    firsts[i].append(contender.measure(1))
    return [
        {
            "method": each.name,
            "chunk": each.policy.chunk,
            "calls_per_chunk": count,
            "parameters": each.policy.count_parameters(),
            "machine": device_name(each.device),
            "median_ms": _to_milliseconds(float(np.median(chunk))),
            "p99_ms": _to_milliseconds(float(np.percentile(chunk, 99))),
            "first_action_ms": _to_milliseconds(float(np.median(first))),
            "n": len(chunk),
        }
        for each, count, chunk, first in zip(contenders, calls, chunks, firsts, strict=True)
    ]


def _to_milliseconds(seconds: float) -> float:
    """Return milliseconds with five significant digits."""
    return float(f"{1e3 * seconds:.5g}")
