"""Faults of a control loop, and the reaction to them: hold, stop or call back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np

from nsde_policy.errors import summarize_error
from nsde_policy.interface.planner import check_array

from .limits import Limiter


class FaultKind(StrEnum):
    """Kinds of faults that a session detects."""

    NON_FINITE_OBSERVATION = "non_finite_observation"
    """An observation contains NaN or infinity."""
    WRONG_OBSERVATION = "wrong_observation"
    """An observation has the wrong shape, or is not numeric; or the first one has wrong units."""
    IMPLAUSIBLE_OBSERVATION = "implausible_observation"
    """An observation jumped far outside the demonstrated range, for at most two policy periods."""
    STALE_OBSERVATION = "stale_observation"
    """An observation is older than `max_age_s` when it arrives."""
    MISSING_OBSERVATION = "missing_observation"
    """A policy period passed without an observation."""
    REPEATED_OBSERVATION = "repeated_observation"
    """An observation has the time stamp of the policy period before."""
    REORDERED_OBSERVATION = "reordered_observation"
    """An observation has an earlier time stamp than one that arrived before."""
    MISSING_FRAME = "missing_frame"
    """An observation has no frame of a camera."""
    WRONG_FRAME = "wrong_frame"
    """A camera frame has the wrong shape or type."""
    IMPLAUSIBLE_FRAME = "implausible_frame"
    """A camera frame is black, white, uniform, blurred or noise, compared with the demonstrations."""
    FROZEN_FRAME = "frozen_frame"
    """A camera frame did not change for three policy periods, although the robot moved visibly."""
    STALE_FRAME = "stale_frame"
    """A camera frame with its own time stamp is older than `max_age_s`."""
    HIDDEN_SCENE = "hidden_scene"
    """Less than `min_visible` of what the policy relies on is visible in the camera frames."""
    CLOCK_JUMP = "clock_jump"
    """The clock moved back or too far ahead, or a time stamp is invalid or in the future."""
    NON_FINITE_PLAN = "non_finite_plan"
    """The planner returned NaN, infinity or a wrong shape."""
    LATE_PLAN = "late_plan"
    """Planning, with the encoding of frames, took longer than `deadline_s`, or no plan is available."""
    PLANNER_ERROR = "planner_error"
    """The planner raised an exception, or the encoder of its frames did."""
    CALLBACK_ERROR = "callback_error"
    """The callback for another fault raised an exception, or did not return a command."""
    OUT_OF_DISTRIBUTION = "out_of_distribution"
    """The state is out of distribution, or an observation stays far outside the demonstrated range; a fault
    only if `fault_when_ood` is set."""


@dataclass(frozen=True)
class Fault:
    """One fault, its time on the session's clock in seconds, and a human-readable detail."""

    kind: FaultKind
    time: float
    detail: str
    camera: str | None = None
    """Name of the camera whose frame is bad."""


FaultCallback = Callable[[Fault], np.ndarray | None]
"""Returns the command to send, which is limited like any other, or None to hold."""
Reaction = Literal["hold", "stop"] | FaultCallback
OnFault = Reaction | Mapping[FaultKind, Reaction]
"""One reaction for all faults, or one for each kind; kinds that are not in the mapping hold."""


def get_reaction(on_fault: OnFault, kind: FaultKind) -> Reaction:
    """Look up the reaction to a kind of fault."""
    return on_fault.get(kind, "hold") if isinstance(on_fault, Mapping) else on_fault


def respond_to_faults(
    faults: list[Fault], on_fault: OnFault, limiter: Limiter, dt: float
) -> tuple[str, np.ndarray, Fault | None]:
    """Compute the command for `dt` seconds: brake if any reaction is stop, else ask the callbacks, else hold.

    If a callback raises an exception, or does not return finite numbers, `faults` gets another fault,
    `callback_error`. The reaction to it is hold, or stop if that is set. Exceptions that do not
    derive from `Exception`, such as `KeyboardInterrupt`, get through: they are meant for the program. Return
    "hold" or "callback", the command (act_dim,), and the fault that stops the session, if any.
    """
    reactions = [(get_reaction(on_fault, fault.kind), fault) for fault in faults]
    for reaction, fault in reactions:
        if reaction == "stop":
            return "hold", limiter.brake(dt), fault
    for reaction, fault in reactions:
        if not callable(reaction):
            continue
        try:
            answer = reaction(fault)
            target = None if answer is None else check_array(answer, limiter.command.shape, "the command")
        except Exception as error:  # a callback may raise anything, the loop must go on
            failed = Fault(FaultKind.CALLBACK_ERROR, fault.time, describe_error(error))
            faults.append(failed)
            stops = get_reaction(on_fault, failed.kind) == "stop"
            return "hold", limiter.brake(dt), failed if stops else None
        if target is not None and dt > 0:
            return "callback", limiter.follow(target, np.zeros_like(target), dt), None
    return "hold", limiter.brake(dt), None


def describe_error(error: BaseException) -> str:
    """Format an exception on one line, for the detail of a fault."""
    return f"{type(error).__name__}: {summarize_error(error)}"
