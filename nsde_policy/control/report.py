"""Records of a control session: one per command, and a summary report."""

import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import PolicySpec
from nsde_policy.interface.roughness import RoughnessMeter, compare_roughness, describe_roughness

from .faults import Fault, FaultKind

MAX_SAMPLES = 100_000
"""Number of newest latencies that the report summarizes."""


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

    def to_json(self) -> str:
        """Convert to one line of JSON, for a log."""
        return json.dumps(asdict(self), default=np.ndarray.tolist)


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
    """Quantiles of the planning time of the newest plans; 0 without plans."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Number of faults of each kind."""
    held: int = 0
    """Commands that held or braked instead of following a plan."""
    out_of_distribution: int = 0
    """Commands sent while the state was out of distribution."""
    outside: str | None = None
    """Why the newest observation far outside the demonstrated range is; None without any."""
    least_visible: float | None = None
    """Smallest fraction of what the policy relies on that was visible; None if it is not reported."""
    lost_cameras: dict[str, int] = field(default_factory=dict)
    """Number of commands that were computed without a camera, by its name."""
    roughness: float | None = None
    """How many times as rough as the demonstrations the commands were, at the rate of the policy; None if it
    is unknown, as for a run that an earlier version trained."""

    def to_text(self) -> str:
        """Format as a few lines of text."""
        faults = ", ".join(f"{kind} {count}" for kind, count in self.faults.items()) or "none"
        return "\n".join(
            [
                f"{self.commands} commands in {self.seconds:.2f} s: {self.rate_hz:.2f} Hz, "
                f"{self.skipped_ticks} periods skipped, {self.held} held, "
                f"{self.out_of_distribution} out of distribution",
                f"{self.plans} plans: latency {1e3 * self.latency_p50_s:.2f} ms median, "
                f"{1e3 * self.latency_p99_s:.2f} p99; {self.missed_deadlines} missed deadlines",
                *([] if self.roughness is None else [describe_roughness(self.roughness)]),
                *([] if self.least_visible is None else [f"visible: at least {self.least_visible:.0%}"]),
                *([] if self.outside is None else [f"far outside the demonstrations: {self.outside}"]),
                f"faults: {faults}",
                *(f"{camera}: {count} commands without it" for camera, count in self.lost_cameras.items()),
            ]
        )


class SessionRecorder:
    """Counts events while a session runs."""

    def __init__(self, spec: PolicySpec, calibration: Calibration) -> None:
        self._demonstrated = calibration.roughness
        self._meter = RoughnessMeter(spec)
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
        """Count a command that was sent `since` seconds after the one before."""
        self.counts.commands += 1
        self.counts.seconds += since
        self.counts.held += command.source in ("hold", "callback")
        self.counts.out_of_distribution += command.is_ood
        self.counts.outside = command.outside or self.counts.outside
        if command.visible is not None:
            least = self.counts.least_visible
            self.counts.least_visible = command.visible if least is None else min(least, command.visible)
        for fault in command.faults:
            self.record_fault(fault)
        for camera in {fault.camera for fault in command.lost if fault.camera is not None}:
            self.counts.lost_cameras[camera] = self.counts.lost_cameras.get(camera, 0) + 1

    def record_period(self, period: int, command: np.ndarray) -> None:
        """Add the command of a finished policy period to the roughness."""
        self._meter.add(period, command)

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
            lost_cameras=dict(counts.lost_cameras),
            roughness=compare_roughness(self._meter.roughness, self._demonstrated),
            faults={kind.value: self._faults[kind.value] for kind in FaultKind if self._faults[kind.value]},
        )
