"""Planning aside: a worker plans while the loop goes on, so that a slow machine never stalls it."""

import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nsde_policy.inference.spec import Plan, Planner

LEAVE_S = 5.0
"""Longest that the end of a program waits for a plan under way, seconds."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is to be planned."""

    index: int
    """How many plans were asked for before."""
    states: np.ndarray
    """What the policy is shown, newest first, (history, d)."""
    steps: int
    randomness: int
    """What the randomness of all plans is drawn from."""
    start: int
    """Policy period of the plan's first command."""
    in_force: np.ndarray
    """The command of the period before it, (act_dim,)."""
    use: int
    """Commands to execute before the next plan takes over."""
    ahead: bool
    """Whether `start` was still to come when it was asked."""
    asked: float
    """When, on the session's clock, seconds."""

    @property
    def seed(self) -> int:
        """Of this plan; worked out where the planning is done."""
        return int(np.random.SeedSequence([self.randomness, self.index]).generate_state(1)[0])


@dataclass(frozen=True, eq=False)
class Answer:
    """What came of it."""

    question: Question
    plan: Plan | None
    error: BaseException | None
    latency: float
    """From question to answer, seconds."""


def answer_to(planner: Planner, question: Question, clock: Callable[[], float]) -> Answer:
    """Plan now; an exception becomes part of the answer."""
    try:
        plan = planner.plan_from(question.states, steps=question.steps, seed=question.seed)
    except Exception as error:  # whatever a network, a graph or a connection may raise
        return Answer(question, None, error, clock() - question.asked)
    return Answer(question, plan, None, clock() - question.asked)


class Worker(Protocol):
    """Answers questions aside, one at a time."""

    def ask(self, question: Question) -> None:
        """Begin to plan; the session asks nothing else before it has the answer."""

    def answer(self, patience: float) -> Answer | None:
        """The answer, if it is there within `patience` seconds."""

    def close(self) -> None:
        """Let go; a plan under way is not waited for."""


class ThreadWorker:
    """A thread that plans in real time."""

    def __init__(self, planner: Planner, clock: Callable[[], float]) -> None:
        self._planner, self._clock = planner, clock
        self._questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="nsde-policy planner", daemon=True)
        self._thread.start()
        weakref.finalize(self, _end, self._questions, self._thread)

    def ask(self, question: Question) -> None:
        """Hand over a question."""
        self._questions.put(question)

    def answer(self, patience: float) -> Answer | None:
        """The answer, waiting for at most `patience` seconds."""
        try:
            return self._answers.get(timeout=patience) if patience > 0 else self._answers.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the thread after the plan it is busy with."""
        self._questions.put(None)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                found = answer_to(self._planner, question, self._clock)
            except BaseException as error:  # even SystemExit: a planner does not end this thread unheard
                found = Answer(question, None, error, self._clock() - question.asked)
            self._answers.put(found)


def _end(questions: queue.SimpleQueue[Question | None], thread: threading.Thread) -> None:
    """Let the thread end before Python does, which would abort beside one that is inside torch."""
    questions.put(None)
    thread.join(LEAVE_S)
