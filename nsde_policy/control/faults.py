"""What can go wrong in a control loop, and what is done about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np


class FaultKind(StrEnum):
    """Every fault a session knows."""

    NON_FINITE_OBSERVATION = "non_finite_observation"
    """NaN or infinity in an observation."""
    WRONG_OBSERVATION = "wrong_observation"
    """Another shape, or no numbers at all."""
    IMPLAUSIBLE_OBSERVATION = "implausible_observation"
    """Numbers that cannot be right against the demonstrations: another unit, another order."""
    STALE_OBSERVATION = "stale_observation"
    """Older than `max_age_s` when it came in, or when a command was asked for."""
    MISSING_OBSERVATION = "missing_observation"
    """A period of the policy passed without an observation."""
    REPEATED_OBSERVATION = "repeated_observation"
    """The time stamp of the period before, again."""
    REORDERED_OBSERVATION = "reordered_observation"
    """A time stamp before that of an observation that came earlier."""
    CLOCK_JUMP = "clock_jump"
    """The clock went back or leapt ahead, a time stamp is not a number or lies in the future."""
    NON_FINITE_PLAN = "non_finite_plan"
    """The planner answered with NaN, infinity, or another shape."""
    LATE_PLAN = "late_plan"
    """Planning took longer than `deadline_s`, or left the loop without a command."""
    PLANNER_ERROR = "planner_error"
    """The planner raised an exception."""
    CALLBACK_ERROR = "callback_error"
    """The callback that was told of another fault raised an exception."""
    UNFAMILIAR_STATE = "unfamiliar_state"
    """Farther from the demonstrations than they ever are; a fault only where `fault_when_ood` is set."""


@dataclass(frozen=True)
class Fault:
    """One fault, when and why."""

    kind: FaultKind
    time: float
    """On the session's clock, seconds."""
    detail: str


Callback = Callable[[Fault], np.ndarray | None]
"""Answers with the command to send, which still passes the limits, or None to hold."""
Reaction = Literal["hold", "stop"] | Callback
OnFault = Reaction | Mapping[FaultKind, Reaction]
"""One reaction for every fault, or one for each kind; kinds that are not named hold."""


def reaction_to(on_fault: OnFault, kind: FaultKind) -> Reaction:
    """What to do about a fault."""
    return on_fault.get(kind, "hold") if isinstance(on_fault, Mapping) else on_fault


def one_line(error: BaseException | None) -> str:
    """An exception as the detail of a fault."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
