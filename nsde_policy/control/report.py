"""Records of a control session: one per command, a summary report, and a log of JSON lines."""

import json
import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from nsde_policy.errors import NsdePolicyError

from .faults import Fault, FaultKind

logger = logging.getLogger(__name__)

MAX_SAMPLES = 100_000
"""Number of newest latencies and visible fractions that the report summarizes."""


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
    """Whether the score exceeds the threshold, or the last observation is far outside the demonstrations."""
    visible: float | None
    """Fraction of what the policy relies on that is visible in the newest encoded frames; None if a frame has
    a fault, or for a policy that does not report it."""
    source: str
    """One of plan, hold, callback and wait (for the first plan)."""
    plan: int | None
    """Index of the plan that the command follows."""
    faults: tuple[Fault, ...]
    outside: str | None = None
    """Why the last accepted observation is far outside the demonstrated range; None if it is not."""
    lost: tuple[Fault, ...] = ()
    """Faults of a camera that the policy goes on without; the session does not react to them."""


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
    selected: int = 0
    """Plans that were selected from several candidates."""
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
    outside: str | None = None
    """Why the newest observation far outside the demonstrated range is; None without any."""
    visible: float | None = None
    """Mean fraction of what the policy relies on that was visible; None if it is not reported."""
    least_visible: float | None = None
    """Smallest fraction that was visible."""
    lost_cameras: dict[str, int] = field(default_factory=dict)
    """Number of commands that were computed without a camera, by its name."""

    def to_json(self) -> str:
        """Convert to indented JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)

    def to_text(self) -> str:
        """Format as a few lines of text."""
        faults = ", ".join(f"{kind} {count}" for kind, count in self.faults.items()) or "none"
        visible = f"visible: {self.visible or 0:.0%} on average, {self.least_visible or 0:.0%} at worst"
        selected = f"; {self.selected} selected from several candidates"
        return "\n".join(
            [
                f"{self.commands} commands in {self.seconds:.2f} s: {self.rate_hz:.2f} Hz, "
                f"{self.skipped_ticks} periods skipped, {self.held} held, "
                f"{self.out_of_distribution} out of distribution",
                f"{self.plans} plans: latency {1e3 * self.latency_p50_s:.2f} ms median, "
                f"{1e3 * self.latency_p99_s:.2f} p99, {1e3 * self.latency_max_s:.2f} largest; "
                f"{self.missed_deadlines} missed deadlines" + (selected if self.selected else ""),
                *([] if self.visible is None else [visible]),
                *([] if self.outside is None else [f"far outside the demonstrations: {self.outside}"]),
                f"faults: {faults}",
                *(f"{camera}: {count} commands without it" for camera, count in self.lost_cameras.items()),
            ]
        )


class SessionRecorder:
    """Counts events while a session runs, and writes the log: one line of JSON per command."""

    def __init__(self, log: Path | str | None = None) -> None:
        self._log = None
        if log is not None:
            try:
                Path(log).parent.mkdir(parents=True, exist_ok=True)
                self._log = Path(log).open("w", buffering=1 << 16, encoding="utf-8")  # noqa: SIM115
            except (OSError, ValueError) as error:  # the latter for a null byte in the path
                raise NsdePolicyError(f"{log} cannot be written: {error}") from error
        self._latencies: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._faults: Counter[str] = Counter()
        self._visible: deque[float] = deque(maxlen=MAX_SAMPLES)
        self.counts = SessionReport()
        """Counters of the report; the other fields are set by `report`."""

    def record_plan(self, latency: float, *, missed: bool, selected: bool) -> None:
        """Count a plan and its latency in seconds."""
        self.counts.plans += 1
        self.counts.missed_deadlines += missed
        self.counts.selected += selected
        self._latencies.append(latency)

    def record_command(self, command: CommandRecord, *, since: float) -> None:
        """Count and log a command that was sent `since` seconds after the one before."""
        self.counts.commands += 1
        self.counts.seconds += since
        self.counts.held += command.source in ("hold", "callback")
        self.counts.out_of_distribution += command.is_ood
        self.counts.outside = command.outside or self.counts.outside
        if command.visible is not None:
            self._visible.append(command.visible)
        for fault in command.faults:
            self.record_fault(fault)
        for camera in {fault.camera for fault in command.lost if fault.camera is not None}:
            self.counts.lost_cameras[camera] = self.counts.lost_cameras.get(camera, 0) + 1
        if self._log is not None:
            faults: dict[str, str] = {}
            for fault in command.faults:  # two cameras may have faults of one kind
                before = faults.get(fault.kind.value)
                faults[fault.kind.value] = fault.detail if before is None else f"{before}; {fault.detail}"
            values = vars(command) | {"faults": faults, "lost": [fault.detail for fault in command.lost]}
            self._write(json.dumps(values, default=np.ndarray.tolist) + "\n")

    def record_fault(self, fault: Fault) -> None:
        """Count a fault, also one without a command."""
        self._faults[fault.kind.value] += 1

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
            visible=float(np.mean(self._visible)) if self._visible else None,
            least_visible=min(self._visible, default=None),
            lost_cameras=dict(counts.lost_cameras),
            faults={kind.value: self._faults[kind.value] for kind in FaultKind if self._faults[kind.value]},
        )

    def _write(self, line: str) -> None:
        """Write a line to the log; after a failed write, nothing more is logged and the session goes on."""
        if self._log is None:
            return
        try:
            self._log.write(line)
        except OSError as error:
            self._abandon_log(error)

    def close(self) -> None:
        """Close the log file, if there is one."""
        if self._log is None:
            return
        try:
            self._log.close()
            self._log = None
        except OSError as error:  # closing writes the last lines
            self._abandon_log(error)

    def _abandon_log(self, error: OSError) -> None:
        """Warn that the log is incomplete, and log nothing more."""
        if self._log is not None:
            logger.warning("the log %s is incomplete: %s", self._log.name, error.strerror)
        self._log = None
