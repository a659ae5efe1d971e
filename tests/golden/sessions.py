"""Scripted faults of a control session, in simulated time and without threads.

`run_script` returns every command, where it came from, and the kinds of faults. Numpy computes everything, so
that the numbers are the same on every machine.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nsde_policy import Policy
from nsde_policy.control import Session, SessionConfig
from nsde_policy.interface.planner import Planner

TICKS = 30
START = np.array([250.0, 300.0, 200.0, 250.0, 1.0])
"""First observation: position of the agent, position and angle of the block."""


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Walker(Planner):
    """Planner that moves towards a goal drawn from the seed; `troubles` name the faults of its plans."""

    def __init__(self, policy: Policy, clock: Clock, troubles: Mapping[int, str]) -> None:
        self.spec, self._clock, self._troubles = policy.spec, clock, troubles
        first = policy.plan_from(np.zeros((2, 7), np.float32), steps=1, seed=0)
        self._plan_type, self._plans = type(first), 0

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Any:
        trouble = self._troubles.get(self._plans, "")
        self._plans += 1
        if trouble == "raises":
            raise RuntimeError("the network broke")
        if trouble == "slow":
            self._clock.now += 0.17
        goal = 100 + 300 * np.random.default_rng(seed).random(2)
        path = [states[0].astype(np.float64)]
        for _ in range(steps):
            now = path[-1]
            path.append(np.concatenate([now[5:], now[2:5], now[5:] + 0.15 * (goal - now[5:])]))
        actions = np.stack(path)[1:, 5:]
        if trouble == "not finite":
            actions[1] = np.nan
        if trouble == "wrong shape":
            return self._plan_type(actions[:, :1])
        return self._plan_type(actions, np.stack(path), np.full_like(actions, 3.0))


class LazyFuture(Future[Any]):
    """Future that plans when its time has come, in the thread that asks for the result."""

    def __init__(self, function: Callable[[], Any], clock: Clock, ready_at: float) -> None:
        super().__init__()
        self._function, self._session_clock, self._ready_at = function, clock, ready_at

    def done(self) -> bool:
        return self._session_clock() + 1e-9 >= self._ready_at

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            raise TimeoutError  # simulated time does not pass while the session waits
        if not super().done():
            self.set_result(self._function())
        return super().result()


class Worker:
    """Plan worker that delivers each plan after a delay; from its `dies_at`th job on it takes no more."""

    def __init__(self, clock: Clock, delay_s: float, dies_at: int | None) -> None:
        self._clock, self._delay, self._dies_at, self._jobs = clock, delay_s, dies_at, 0

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        self._jobs += 1
        if self._dies_at is not None and self._jobs > self._dies_at:
            raise RuntimeError("the worker is dead")
        return LazyFuture(function, self._clock, self._clock() + self._delay)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Script:
    """What happens to one session; `at` maps ticks to events."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the session."""
    at: dict[int, Callable[[np.ndarray, float], tuple[Any, Any]]] = field(default_factory=dict)
    """Observation and its time stamp at some ticks, from the true ones."""
    troubles: dict[int, str] = field(default_factory=dict)
    """Faults of the planner by the number of the plan."""
    delay_s: float = 0.0
    """How long the worker plans."""
    dies_at: int | None = None
    """Number of jobs after which the worker is dead."""
    jumps: dict[int, float] = field(default_factory=dict)
    """Jumps of the clock before some ticks, seconds."""
    skipped: tuple[int, ...] = ()
    """Ticks at which the robot does not call the session."""
    resets: dict[int, list[float] | None] = field(default_factory=dict)
    """Resets of the session before some ticks, with the robot's position."""


def _raise(fault: Any) -> None:
    raise ValueError(f"cannot handle {fault.kind}")


MISSING = {tick: lambda obs, t: (None, t) for tick in (9, 10, 20)}
FAR = {tick: lambda obs, t: (obs + np.array([0, 0, 250, 250, 0]), t) for tick in (10, 11)}
SCRIPTS = {
    "no fault": Script(),
    "planner is late": Script(troubles={1: "slow"}),
    "planner raises": Script(troubles={1: "raises", 2: "raises"}),
    "plan is not finite": Script(troubles={1: "not finite"}),
    "plan has the wrong shape": Script(troubles={2: "wrong shape"}),
    "observation is missing": Script(at=MISSING),
    "observation is not finite": Script(at={9: lambda obs, t: (obs * np.nan, t)}),
    "observation has the wrong shape": Script({"on_fault": "stop"}, at={9: lambda obs, t: (obs[:4], t)}),
    "observation is implausible": Script(at={9: lambda obs, t: (obs * 1000, t)}),
    "observation is stale": Script(at={9: lambda obs, t: (obs, t - 0.4), 10: lambda obs, t: (obs, t - 0.5)}),
    "observation is repeated": Script(at={9: lambda obs, t: (obs, t - 0.1)}),
    "observation is out of order": Script(at={9: lambda obs, t: (obs, t - 0.13)}),
    "time stamp is in the future": Script(at={9: lambda obs, t: (obs, t + 5.0)}),
    "clock jumps back": Script(jumps={12: -20.0}),
    "clock jumps ahead": Script(jumps={12: 20.0}),
    "periods are skipped": Script(skipped=(10, 11, 19)),
    "callback raises": Script({"on_fault": _raise}, at=MISSING),
    "callback returns a far command": Script({"on_fault": lambda fault: np.array([900.0, -5.0])}, at=MISSING),
    "state is out of distribution": Script({"fault_when_ood": True}, at=FAR),
    "stop when out of distribution": Script(
        {"fault_when_ood": True, "on_fault": {"out_of_distribution": "stop"}}, at=FAR, resets={22: None}
    ),
    "worker dies": Script(dies_at=1),
    "worker is slow": Script({"plan_ahead": True}, delay_s=0.25),
    "worker hangs": Script({"plan_ahead": True}, delay_s=1.3),
    "reset in mid-episode": Script(resets={13: [200.0, 220.0]}),
    "fast loop": Script({"rate_hz": 50.0, "blend": 1.0}, at=MISSING),
}


def run_script(script: Script, policy: Policy) -> list[list[Any]]:
    """Return command, source and kinds of faults at every tick, or the name of the exception."""
    clock = Clock()
    config = SessionConfig(**{"rate_hz": 10.0, "freeze_gc": False, **script.settings})
    worker = Worker(clock, script.delay_s, script.dies_at)
    planner = Walker(policy, clock, script.troubles)
    session = Session(planner, config, calibration=policy.calibration, clock=clock, worker=worker)
    start, obs, records = clock.now, START.copy(), []
    for tick in range(TICKS):
        start += script.jumps.get(tick, 0.0)
        clock.now = max(clock.now + script.jumps.get(tick, 0.0), start + tick / config.rate_hz)
        if tick in script.resets:
            session.reset(script.resets[tick])
        if tick in script.skipped:
            continue
        given, stamp = script.at.get(tick, lambda obs, t: (obs, t))(obs.copy(), clock.now)
        try:
            command = session.step(given, stamp)
        except Exception as error:
            records.append([type(error).__name__])
            continue
        assert session.last is not None
        obs[:2] = command
        kinds = [str(fault.kind) for fault in session.last.faults]
        records.append([[round(float(x), 6) for x in command], session.last.source, kinds])
    session.close()
    return records
