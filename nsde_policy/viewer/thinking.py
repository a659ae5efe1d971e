"""Plans that are made beside the control loop, so that a slow method keeps nobody from pausing it."""

import time
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from typing import NamedTuple

import torch

from nsde_policy.config import Sampling
from nsde_policy.memory import Memory
from nsde_policy.planner import Plan
from nsde_policy.policy import NSDEPolicy


class Thought(NamedTuple):
    """A plan, and what came with it."""

    plan: Plan
    noise: torch.Tensor
    """State of the generator after it."""
    seconds: float


class Thinker:
    """Makes one plan at a time, in a thread of its own; one that is given up is not waited for."""

    def __init__(self, policy: NSDEPolicy) -> None:
        self._policy = policy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nsde-policy-thinker")
        self._coming: Future[Thought] | None = None

    @property
    def busy(self) -> bool:
        """Whether a plan has been begun and not been taken."""
        return self._coming is not None

    def begin(self, memory: Memory, noise: torch.Tensor, chunk: int, sampling: Sampling) -> None:
        """Begin a plan for what has been seen, with noise from that state of a generator on."""
        self._coming = self._thread.submit(self._think, memory.copy(), noise, chunk, sampling)

    def take(self, patience_s: float) -> Thought | None:
        """The plan; None where it takes longer than that."""
        if self._coming is None:
            return None
        try:
            thought = self._coming.result(patience_s)
        except TimeoutError:
            return None
        except Exception:
            self._coming = None
            raise
        self._coming = None
        return thought

    def give_up(self) -> None:
        """The world has changed: forget the plan that is being made."""
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None

    def _think(self, memory: Memory, noise: torch.Tensor, chunk: int, sampling: Sampling) -> Thought:
        generator = torch.Generator()
        generator.set_state(noise)
        started = time.perf_counter()
        plan = self._policy.plan(memory, generator=generator, chunk=chunk, sampling=sampling)
        return Thought(plan, generator.get_state(), time.perf_counter() - started)
