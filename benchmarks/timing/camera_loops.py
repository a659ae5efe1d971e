"""A control loop with cameras in real time, next to busy processes."""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.interface.planner import Planner
from timing.common import ROOT, Options

sys.path.append(str(ROOT / "examples"))
RATE_HZ, BUSY, TURNS = 50, 4, 4


def measure_cameras(options: Options) -> list[dict[str, Any]]:
    """Run a session with two cameras that plans ahead, with and without encoding, by turns.

    A step is long if it takes more than a control period. The session without encoding is the reference: busy
    processes slow its steps too. The policy plans in every policy period, which encodes the most frames.
    Without --run, an almost untrained policy is used; its speed is the same.
    """
    from two_cameras import SIZES, record_held

    import nsde_policy

    with tempfile.TemporaryDirectory() as folder, keep_busy(0 if options.smoke else BUSY):
        if options.run:
            policy = nsde_policy.Policy.from_pretrained(options.run)
        else:
            store = record_held(Path(folder) / "demos.zarr", 2)
            run = Path(folder) / "run"
            policy = nsde_policy.train(store, out=run, images=list(SIZES), steps=10, images_dropout=0.3)
        planners = {"yes": TimedEncoder(policy), "no": TimedEncoder(policy, encodes=False)}
        seconds, rows = (1.0 if options.smoke else options.seconds) / TURNS, dict[str, dict[str, Any]]()
        for _ in range(TURNS):
            for name, planner in planners.items():
                found = run_loop(planner, policy.calibration, seconds)
                before = rows.setdefault(name, dict.fromkeys(found, 0))
                rows[name] = {key: before[key] + value for key, value in found.items()}
    load = os.getloadavg()[0]
    return [{"encodes": name, **counts, "load": load} for name, counts in rows.items()]


@contextmanager
def keep_busy(count: int) -> Iterator[None]:
    """Run processes that do nothing but use a core."""
    processes = [
        multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _spin() -> None:
    while True:
        pass


class TimedEncoder(Planner):
    """A planner that keeps when it encoded frames; or one that returns the same features for all frames."""

    def __init__(self, policy: Any, *, encodes: bool = True) -> None:
        self.spec = policy.spec
        self.spans: list[tuple[float, float]] = []
        self._policy, self._encodes = policy, encodes
        features = slice(policy.spec.plain_dim, policy.spec.obs_dim)
        low, high = (np.array(values[features]) for values in (policy.spec.low, policy.spec.high))
        self._features = (low + high)[None] / 2

    def encode_frames(
        self, values: np.ndarray, frames: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode the frames of one moment."""
        if not self._encodes:
            return self._features, None
        began = time.perf_counter()
        encoded: tuple[np.ndarray, np.ndarray | None] = self._policy.encode_frames(values, frames)
        self.spans.append((began, time.perf_counter()))
        return encoded

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Any:
        """Plan as the policy does."""
        return self._policy.plan_from(states, steps=steps, seed=seed)


def run_loop(planner: TimedEncoder, calibration: Any, seconds: float) -> dict[str, int]:
    """Show recorded frames to a session in real time; count long steps, also those while it encoded."""
    from simulated_arm import RATE_HZ as POLICY_HZ
    from simulated_arm import SimulatedArm, play_expert
    from two_cameras import SIZES, find_frames

    from nsde_policy.control import Session, SessionConfig

    episode, extras = play_expert(SimulatedArm(0, SIZES), *SIZES)
    taken = {name: find_frames(name, len(episode)) for name in SIZES}
    planner.spans.clear()
    steps: list[tuple[float, float, float]] = []
    config = SessionConfig(rate_hz=RATE_HZ, plan_ahead=True, chunk=1, initial_command=episode.act[0])
    with Session(planner, config, calibration=calibration) as session:
        began = time.monotonic()
        for tick in session.ticks():
            row = int((tick - began) * POLICY_HZ)
            if tick - began >= seconds or row >= len(episode):
                break
            obs = {f"observation.images.{name}": extras[name][frames[row]] for name, frames in taken.items()}
            started, used = time.perf_counter(), time.thread_time()
            session.step({"observation.state": episode.obs[row], **obs})
            steps.append((started, time.perf_counter(), time.thread_time() - used))
    report, period = session.report(), 1 / RATE_HZ
    long = [(start, end) for start, end, _ in steps if end - start > period]
    return {
        "commands": report.commands,
        "encoded": len(planner.spans),
        "long_steps": len(long),
        "long_while_encoding": sum(
            any(first < end and last > start for first, last in planner.spans) for start, end in long
        ),
        "long_in_processor_time": sum(used > period for *_, used in steps),
        "periods_without_command": report.skipped_ticks,
        "plans": report.plans,
        "late_plans": report.missed_deadlines,
    }
