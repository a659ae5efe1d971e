"""Plans that are made beside the control loop, so that a slow method keeps nobody from pausing it."""

import contextlib
import threading
import time
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from nsde_policy.config import Sampling
from nsde_policy.inference.history import History
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.spec import Plan


class Thought(NamedTuple):
    """A plan, and what came with it."""

    plan: Plan
    noise: torch.Tensor
    """State of the generator after it."""
    seconds: float


@dataclass(frozen=True, eq=False)
class _Wish:
    """A plan that is wanted."""

    memory: History
    noise: torch.Tensor
    chunk: int
    sampling: Sampling
    coming: Future[Thought] = field(default_factory=Future)


class Desk:
    """The one thread in which a method plans, one plan at a time.

    A plan that is being made cannot be stopped, only forgotten; those that wait behind it can be taken back.
    So however often somebody changes their mind, there is one plan being made, and one wanted by each lane.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._wishes: list[_Wish] = []
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, wish: _Wish) -> None:
        """Have a plan made when its turn comes."""
        with self._news:
            self._wishes.append(wish)
            self._news.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="nsde-policy-thinker", daemon=True)
                self._thread.start()

    def take_back(self, wish: _Wish) -> None:
        """Nobody wants it any more."""
        with self._news, contextlib.suppress(ValueError):  # it has been begun
            self._wishes.remove(wish)

    def close(self, patience_s: float) -> bool:
        """Make no more plans; whether the one being made has ended within so many seconds."""
        with self._news:
            self._closed = True
            self._news.notify()
        if self._thread is None:
            return True
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (wish := self._next()) is not None:
            try:
                wish.coming.set_result(self._think(wish))
            except BaseException as error:  # even SystemExit: whoever waits has to be told
                wish.coming.set_exception(error)

    def _next(self) -> _Wish | None:
        with self._news:
            self._news.wait_for(lambda: self._wishes or self._closed)
            return None if self._closed else self._wishes.pop(0)

    def _think(self, wish: _Wish) -> Thought:
        generator = torch.Generator()
        generator.set_state(wish.noise)
        started = time.perf_counter()
        plan = self._policy.plan(wish.memory, generator=generator, chunk=wish.chunk, sampling=wish.sampling)
        return Thought(plan, generator.get_state(), time.perf_counter() - started)


class Thinker:
    """Has one plan at a time made at a desk; one that is given up is not waited for."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._wish: _Wish | None = None

    @property
    def busy(self) -> bool:
        """Whether a plan has been begun and not been taken."""
        return self._wish is not None

    def begin(self, memory: History, noise: torch.Tensor, chunk: int, sampling: Sampling) -> None:
        """Begin a plan for what has been seen, with noise from that state of a generator on."""
        self.give_up()
        self._wish = _Wish(memory.copy(), noise, chunk, sampling)
        self._desk.put(self._wish)

    def take(self, patience_s: float) -> Thought | None:
        """The plan; None where it takes longer than that."""
        if self._wish is None:
            return None
        try:
            thought = self._wish.coming.result(patience_s)
        except TimeoutError:
            return None
        except Exception:
            self._wish = None
            raise
        self._wish = None
        return thought

    def give_up(self) -> None:
        """The world has changed: forget the plan that is being made."""
        if self._wish is not None:
            self._desk.take_back(self._wish)
            self._wish = None
