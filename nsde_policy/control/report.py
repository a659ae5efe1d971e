"""What a control session did: one record per command, one report for all; JSON lines while it runs."""

import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from nsde_policy.control.faults import Fault, FaultKind
from nsde_policy.errors import OutputError
from nsde_policy.files import check_writable

KEPT = 100_000
"""Latencies and jerks that are kept for quantiles, the newest."""


@dataclass(frozen=True, eq=False)
class Sent:
    """One command as it left the session."""

    time: float
    """The instant it is for, on the session's clock, seconds."""
    action: np.ndarray
    """(act_dim,)"""
    sigma: np.ndarray
    """How unsure the command is, in its own units, (act_dim,); what the demonstrations' commands change in
    that time where a method does not say, and while a command is held."""
    ood: float | None
    """Distance of the last state from the demonstrations, see `calibration.NoveltyDetector`; None where the
    session knows of none."""
    is_ood: bool
    """Whether it is beyond the threshold calibrated on the demonstrations."""
    source: str
    """plan, hold, callback or wait (for the first plan)."""
    plan: int | None
    """Which plan it is from, counted from 0."""
    planned_for: float | None
    """The instant the plan meant it for, seconds; never more than one policy period before `time`."""
    faults: tuple[Fault, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for one line of JSON."""
        return {
            "time": self.time,
            "action": self.action.tolist(),
            "sigma": self.sigma.tolist(),
            "ood": self.ood,
            "is_ood": self.is_ood,
            "source": self.source,
            "plan": self.plan,
            "faults": {fault.kind.value: fault.detail for fault in self.faults},
        }


@dataclass(frozen=True)
class Report:
    """How a session went."""

    commands: int
    seconds: float
    """From the first command to the last."""
    rate_hz: float
    """Commands per second, as achieved."""
    plans: int
    missed_deadlines: int
    """Plans that came later than they were needed."""
    skipped_ticks: int
    """Control periods that passed without a command."""
    latency_p50_s: float
    latency_p99_s: float
    latency_max_s: float
    """Of planning, over the newest plans; 0 where there was none."""
    faults: Mapping[str, int]
    """How often each kind occurred."""
    held: int
    """Commands that held or braked instead of following a plan."""
    unfamiliar: int
    """Commands sent while the state was farther from the demonstrations than their threshold."""
    jerk_at_joins: float
    """|Δ³ command| from policy period to policy period where one plan takes over from another, in largest
    steps per period; median. It does not depend on the control rate."""
    jerk_elsewhere: float
    """The same within plans."""

    def to_json(self) -> str:
        """Indented JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)

    def as_text(self) -> str:
        """A few lines for people."""
        faults = ", ".join(f"{kind} {count}" for kind, count in self.faults.items()) or "none"
        return "\n".join(
            [
                f"{self.commands} commands in {self.seconds:.2f} s: {self.rate_hz:.2f} Hz, "
                f"{self.skipped_ticks} periods skipped, {self.held} held, {self.unfamiliar} unfamiliar",
                f"{self.plans} plans: latency {1e3 * self.latency_p50_s:.2f} ms median, "
                f"{1e3 * self.latency_p99_s:.2f} p99, {1e3 * self.latency_max_s:.2f} largest; "
                f"{self.missed_deadlines} missed deadlines",
                f"jerk at joins {self.jerk_at_joins:.3f}, elsewhere {self.jerk_elsewhere:.3f}",
                f"faults: {faults}",
            ]
        )


class Recorder:
    """Counts while a session runs, and writes a line per command where a file is given."""

    def __init__(self, *, step: np.ndarray, log: Path | str | None) -> None:
        self._step = step  # largest change of a command over one policy period, (act_dim,)
        self._log = None if log is None else _opened(Path(log))
        self._periods: deque[tuple[int, np.ndarray, int]] = deque(maxlen=4)
        self._jerks: dict[bool, deque[float]] = {at: deque(maxlen=KEPT) for at in (True, False)}
        self._latencies: deque[float] = deque(maxlen=KEPT)
        self._faults: Counter[str] = Counter()
        self._commands = self._plans = self._missed = self._skipped = self._held = self._unfamiliar = 0
        self._seconds = 0.0

    def planned(self, latency: float, *, missed: bool) -> None:
        """Note a plan and how long it took, seconds."""
        self._plans += 1
        self._missed += missed
        self._latencies.append(latency)

    def skipped(self, ticks: int) -> None:
        """Note control periods that passed without a command."""
        self._skipped += ticks

    def sent(self, sent: Sent, *, since: float) -> None:
        """Note a command, `since` seconds after the one before."""
        self._commands += 1
        self._seconds += since
        self._held += sent.source in ("hold", "callback")
        self._unfamiliar += sent.is_ood
        for fault in sent.faults:
            self._faults[fault.kind.value] += 1
        if self._log is not None:
            self._log.write(json.dumps(sent.to_dict()) + "\n")

    def noted(self, fault: Fault) -> None:
        """Note a fault that came with no command."""
        self._faults[fault.kind.value] += 1

    def period_ended(self, period: int, command: np.ndarray, plan: int | None) -> None:
        """Note the command in the middle of a policy period, and the plan it is from."""
        if plan is None or (self._periods and self._periods[-1][0] != period - 1):
            self._periods.clear()
        if plan is None:
            return
        self._periods.append((period, command, plan))
        if len(self._periods) == 4:
            a, b, c, d = (command for _, command, _ in self._periods)
            jerk = float((np.abs(d - 3 * c + 3 * b - a) / self._step).max())
            self._jerks[len({plan for *_, plan in self._periods}) > 1].append(jerk)

    def report(self) -> Report:
        """What has been counted so far."""
        latency = np.array(self._latencies) if self._latencies else np.zeros(1)
        seconds = self._seconds
        return Report(
            commands=self._commands,
            seconds=seconds,
            rate_hz=(self._commands - 1) / seconds if seconds > 0 else 0.0,
            plans=self._plans,
            missed_deadlines=self._missed,
            skipped_ticks=self._skipped,
            latency_p50_s=float(np.quantile(latency, 0.5)),
            latency_p99_s=float(np.quantile(latency, 0.99)),
            latency_max_s=float(latency.max()),
            faults={kind.value: self._faults[kind.value] for kind in FaultKind if self._faults[kind.value]},
            held=self._held,
            unfamiliar=self._unfamiliar,
            jerk_at_joins=_median(self._jerks[True]),
            jerk_elsewhere=_median(self._jerks[False]),
        )

    def close(self) -> None:
        """Finish the file."""
        if self._log is not None:
            self._log.close()
            self._log = None


def _median(values: deque[float]) -> float:
    return float(np.median(values)) if values else 0.0


def _opened(log: Path) -> IO[str]:
    check_writable(log)
    try:
        return log.open("w", buffering=1 << 16)
    except OSError as error:
        raise OutputError(f"{log} cannot be written: {error.strerror}") from error
