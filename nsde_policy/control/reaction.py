"""What a session sends when something went wrong."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nsde_policy.control.faults import Fault, FaultKind, OnFault, one_line, reaction_to
from nsde_policy.control.limits import Limiter


class Reacted(NamedTuple):
    """What is done about faults."""

    source: str
    """hold, or callback."""
    action: np.ndarray
    """The command, inside the limits, (act_dim,)."""
    stop: Fault | None
    """The fault that ends the session; None where it goes on."""
    failed: Fault | None = None
    """What went wrong with the callback."""


def react(faults: Sequence[Fault], on_fault: OnFault, limiter: Limiter, dt: float) -> Reacted:
    """Stop where one of the faults asks for it, else ask the first callback, else hold; for `dt` seconds.

    A callback that raises holds, too, unless `callback_error` is to stop.
    """
    reactions = [(reaction_to(on_fault, fault.kind), fault) for fault in faults]
    for reaction, fault in reactions:
        if reaction == "stop":
            return Reacted("hold", limiter.hold(dt), fault)
    for reaction, fault in reactions:
        if not callable(reaction):
            continue
        try:
            wanted = reaction(fault)
        except Exception as error:  # of any kind: it is not the loop's
            failed = Fault(FaultKind.CALLBACK_ERROR, fault.time, one_line(error))
            stops = reaction_to(on_fault, failed.kind) == "stop"
            return Reacted("hold", limiter.hold(dt), failed if stops else None, failed)
        if wanted is not None:
            target = _numbers(wanted)
            if target.shape == limiter.command.shape and np.isfinite(target).all() and dt > 0:
                return Reacted("callback", limiter.follow(target, np.zeros_like(target), dt), None)
    return Reacted("hold", limiter.hold(dt), None)


def _numbers(wanted: Any) -> np.ndarray:
    """What a callback answered as an array; an empty one, which is no command, for what holds no numbers."""
    try:
        return np.asarray(wanted, dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros(0)
