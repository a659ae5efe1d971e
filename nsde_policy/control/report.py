"""Records of a control session: one per command, a summary report, and a log of JSON lines."""

import json
import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from nsde_policy.control.clock import TimeGrid
from nsde_policy.control.faults import Fault, FaultKind
from nsde_policy.errors import NsdePolicyError

logger = logging.getLogger(__name__)

MAX_SAMPLES = 100_000
"""Number of newest latencies and jerks that the report summarizes."""


@dataclass(frozen=True, eq=False)
class CommandRecord:
    """One command that a session returned."""

    time: float
    """Time on the session's clock that the command is for, seconds."""
    action: np.ndarray
    """The command, (act_dim,)."""
    sigma: np.ndarray
    """Standard deviation of the command, (act_dim,). For methods that do not report it and while holding: the
    standard deviation of the commands' changes in the demonstrations."""
    ood: float | None
    """Out-of-distribution score of the last state (`calibration.OODDetector`); None if not calibrated."""
    is_ood: bool
    """Whether the score exceeds the threshold."""
    source: str
    """One of plan, hold, callback and wait (for the first plan)."""
    plan: int | None
    """Index of the plan that the command follows."""
    planned_for: float | None
    """Start of the policy period that the plan meant it for, seconds; at most one period before `time`."""
    faults: tuple[Fault, ...]


@dataclass
class SessionReport:
    """Summary of a session."""

    commands: int = 0
    seconds: float = 0.0
    """Time from the first command to the last."""
    rate_hz: float = 0.0
    """Achieved commands per second."""
    plans: int = 0
    missed_deadlines: int = 0
    """Plans that arrived later than they were needed."""
    skipped_ticks: int = 0
    """Control periods without a command."""
    latency_p50_s: float = 0.0
    latency_p99_s: float = 0.0
    latency_max_s: float = 0.0
    """Longest planning time of the newest plans; 0 without plans."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Number of faults of each kind."""
    held: int = 0
    """Commands that held or braked instead of following a plan."""
    out_of_distribution: int = 0
    """Commands sent while the state was out of distribution."""
    jerk_at_joins: float = 0.0
    """Median |Δ³ command| from policy period to policy period while one plan takes over from another, as a
    fraction of the largest step per period. It does not depend on the control rate."""
    jerk_elsewhere: float = 0.0
    """Median of the same within plans."""
    jerk_limit_used: float = 0.0
    """Largest |Δ³ command| / Δt³ over four commands at the control rate, as a fraction of the jerk limit; 0
    without a limit."""

    def to_json(self) -> str:
        """Convert to indented JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)

    def to_text(self) -> str:
        """Format as a few lines of text."""
        faults = ", ".join(f"{kind} {count}" for kind, count in self.faults.items()) or "none"
        return "\n".join(
            [
                f"{self.commands} commands in {self.seconds:.2f} s: {self.rate_hz:.2f} Hz, "
                f"{self.skipped_ticks} periods skipped, {self.held} held, "
                f"{self.out_of_distribution} out of distribution",
                f"{self.plans} plans: latency {1e3 * self.latency_p50_s:.2f} ms median, "
                f"{1e3 * self.latency_p99_s:.2f} p99, {1e3 * self.latency_max_s:.2f} largest; "
                f"{self.missed_deadlines} missed deadlines",
                f"jerk at joins {self.jerk_at_joins:.3f}, elsewhere {self.jerk_elsewhere:.3f}"
                + (f", at most {self.jerk_limit_used:.3f} of the limit" if self.jerk_limit_used else ""),
                f"faults: {faults}",
            ]
        )


class Recorder:
    """Counts events while a session runs, and writes the log.

    Args:
        step: Largest change of a command in one policy period, (act_dim,).
        log: File for one line of JSON per command.
        tick_s: Control period, seconds.
        jerk_limit: Largest jerk, units per second cubed, (act_dim,); None for no limit.
    """

    def __init__(
        self,
        *,
        step: np.ndarray,
        log: Path | str | None,
        tick_s: float,
        jerk_limit: np.ndarray | None = None,
    ) -> None:
        self._step, self._tick_s, self._jerk_limit = step, tick_s, jerk_limit
        self._commands: deque[np.ndarray] = deque(maxlen=4)  # one control period apart
        self._log = None
        if log is not None:
            try:
                Path(log).parent.mkdir(parents=True, exist_ok=True)
                self._log = Path(log).open("w", buffering=1 << 16)  # noqa: SIM115
            except (OSError, ValueError) as error:  # the latter for a null byte in the path
                raise NsdePolicyError(f"{log} cannot be written: {error}") from error
        self._periods: deque[tuple[int, np.ndarray, int]] = deque(maxlen=4)
        self._jerks_at_joins: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._jerks_elsewhere: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._latencies: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._faults: Counter[str] = Counter()
        self.counts = SessionReport()
        """Counters of the report; the other fields are set by `report`."""

    def record_plan(self, latency: float, *, missed: bool) -> None:
        """Count a plan and its latency in seconds."""
        self.counts.plans += 1
        self.counts.missed_deadlines += missed
        self._latencies.append(latency)

    def record_command(self, command: CommandRecord, *, since: float) -> None:
        """Count and log a command that was sent `since` seconds after the one before."""
        self.counts.commands += 1
        self.counts.seconds += since
        self.counts.held += command.source in ("hold", "callback")
        self.counts.out_of_distribution += command.is_ood
        for fault in command.faults:
            self.record_fault(fault)
        if self._jerk_limit is not None:
            self._measure_jerk(command.action, self._jerk_limit, since)
        if self._log is not None:
            faults: dict[str, str] = {}
            for fault in command.faults:  # two cameras may have faults of one kind
                before = faults.get(fault.kind.value)
                faults[fault.kind.value] = fault.detail if before is None else f"{before}; {fault.detail}"
            values = vars(command) | {"faults": faults}
            del values["planned_for"]
            self._write(json.dumps(values, default=np.ndarray.tolist) + "\n")

    def _measure_jerk(self, command: np.ndarray, limit: np.ndarray, since: float) -> None:
        """Compare the jerk of the last four commands with the limit, if they are one period apart."""
        if abs(since - self._tick_s) > 1e-6 * self._tick_s:
            self._commands.clear()
        self._commands.append(command)
        if len(self._commands) == 4:
            jerk = np.abs(_difference_thrice(self._commands)) / self._tick_s**3
            self.counts.jerk_limit_used = max(self.counts.jerk_limit_used, float((jerk / limit).max()))

    def record_fault(self, fault: Fault) -> None:
        """Count a fault, also one without a command."""
        self._faults[fault.kind.value] += 1

    def record_period(self, period: int, command: np.ndarray, plan: int | None) -> None:
        """Update the jerk with the command in the middle of a policy period and the index of its plan."""
        if plan is None or (self._periods and self._periods[-1][0] != period - 1):
            self._periods.clear()
        if plan is None:
            return
        self._periods.append((period, command, plan))
        if len(self._periods) == 4:
            third = _difference_thrice([command for _, command, _ in self._periods])
            jerk = float((np.abs(third) / self._step).max())
            one_plan = len({plan for *_, plan in self._periods}) == 1
            (self._jerks_elsewhere if one_plan else self._jerks_at_joins).append(jerk)

    def report(self) -> SessionReport:
        """Summarize everything recorded so far."""
        latency = np.array(self._latencies) if self._latencies else np.zeros(1)
        counts = self.counts
        return replace(
            counts,
            rate_hz=(counts.commands - 1) / counts.seconds if counts.seconds > 0 else 0.0,
            latency_p50_s=float(np.quantile(latency, 0.5)),
            latency_p99_s=float(np.quantile(latency, 0.99)),
            latency_max_s=float(latency.max()),
            faults={kind.value: self._faults[kind.value] for kind in FaultKind if self._faults[kind.value]},
            jerk_at_joins=float(np.median(self._jerks_at_joins or [0.0])),
            jerk_elsewhere=float(np.median(self._jerks_elsewhere or [0.0])),
        )

    def _write(self, line: str) -> None:
        """Write a line to the log; a full disk ends the log, not the control loop."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.write(line) if line else log.close()
                self._log = log if line else None
            except OSError as error:
                logger.warning("the log %s is incomplete: %s", log.name, error.strerror)

    def close(self) -> None:
        """Close the log file, if there is one."""
        self._write("")


def _difference_thrice(commands: Sequence[np.ndarray]) -> np.ndarray:
    a, b, c, d = commands
    third: np.ndarray = d - 3 * c + 3 * b - a
    return third


class PeriodCommands:
    """Keeps the command closest to the middle of each policy period: the one that the policy planned.

    Changes per period (`delta_columns`) of one period add up.
    """

    def __init__(self, grid: TimeGrid, recorder: Recorder, *, delta_columns: Sequence[int] = ()) -> None:
        self._grid, self._recorder, self._deltas = grid, recorder, list(delta_columns)
        self.command: np.ndarray | None = None
        """Command of the newest period, (act_dim,)."""
        self.restart()

    def restart(self) -> None:
        """Forget the period: periods are counted from zero again."""
        self._middle: tuple[int, np.ndarray, int | None] | None = None

    def update(self, command: CommandRecord, period: int) -> None:
        """Register a command that was sent in a policy period."""
        if self._middle is not None and self._middle[0] != period:
            self._recorder.record_period(*self._middle)
            self._middle = None
        action = command.action
        if self._deltas and self._middle is not None:
            action = action.copy()
            action[self._deltas] += self._middle[1][self._deltas]
        half_tick = 0.5 * self._grid.policy_hz / self._grid.rate_hz
        if self._middle is None or self._grid.midpoint(command.time) <= period + half_tick + 1e-9:
            self._middle = period, action, command.plan
            self.command = action
