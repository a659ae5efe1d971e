"""A policy on a table: it plans in its planner thread, and a user may interfere."""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from nsde_policy.assets import get_shipped_name
from nsde_policy.config import Sampling
from nsde_policy.control.worker import PlannerThread
from nsde_policy.core.spec import STATE_KEY
from nsde_policy.errors import PlanError
from nsde_policy.eval.rollouts.disturbances import Condition, Disturbances
from nsde_policy.eval.rollouts.plan_queue import PlanQueue, count_planned
from nsde_policy.interface.planner import History, Plan, check_plan
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.policy import Policy
from nsde_policy.tasks import Task

from .camera import describe_camera
from .controls import Controls
from .forecast import describe_candidates, describe_fan, sample_paths
from .messages import Drag
from .simulation import Simulation


class MeasuredPlan(NamedTuple):
    """A plan and how long it took."""

    plan: Plan
    seconds: float


@dataclass(frozen=True)
class PolicyRunner:
    """A loaded policy with the thread that plans for it; several panels may share it."""

    name: str
    title: str
    policy: Policy
    plan_s: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    """Durations of the last plans with the current controls, seconds."""
    thread: PlannerThread = field(default_factory=PlannerThread)

    def submit_plan(
        self, history: History, generator: torch.Generator, steps: int, sampling: Sampling
    ) -> Future[MeasuredPlan]:
        """Queue a plan from a copy of `history`."""
        history = history.copy()

        def plan_and_time() -> MeasuredPlan:
            started = time.perf_counter()
            plan = self.policy.plan(history, generator=generator, steps=steps, sampling=sampling)
            seconds = time.perf_counter() - started
            try:
                return MeasuredPlan(check_plan(plan, self.policy.spec), seconds)
            except PlanError as error:
                raise PlanError(f"{self.title}: {error}") from None

        return self.thread.submit(plan_and_time)

    def latency(self, controls: Controls) -> dict[str, float] | None:
        """Return the median time of a plan, without encoding; None before the first with these controls."""
        if not self.plan_s:
            return None
        seconds = median(self.plan_s)
        return {"ms": round(1e3 * seconds, 2), "actions": controls.chunk_for(self.policy)}


def load_runners(runs: Sequence[Path]) -> list[PolicyRunner]:
    """Load run directories, each once, under distinct names: their folder's name, or else their path."""
    runs = list(dict.fromkeys(run.resolve() for run in runs))
    names = [get_shipped_name(run) or run.name for run in runs]
    if len({*names}) < len(names):
        names = [get_shipped_name(run) or str(run) for run in runs]
    policies = [Policy.from_pretrained(run) for run in runs]
    titles = [get_method(policy.spec.method).title for policy in policies]
    return [
        PolicyRunner(name, f"{title}, {name}" if titles.count(title) > 1 else title, policy)
        for name, title, policy in zip(names, titles, policies, strict=True)
    ]


class PolicyPanel:
    """One policy on one table.

    It plays as `nsde-policy eval` does: the same seed gives the same episode until a user interferes, also
    with the noise and the latency of the controls.
    """

    _pending: Future[MeasuredPlan] | None = None
    _plan: Plan | None
    _frame: np.ndarray | None = None
    """Last frame of the policy's camera, if it has one."""

    def __init__(self, runner: PolicyRunner, task: Task, seed: int, controls: Controls) -> None:
        self.runner, self.policy, self.controls = runner, runner.policy, controls
        self.simulation = Simulation(task, seed)
        self._longest = round(self.simulation.table.limit_s * (task.rate_hz or 1.0))
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start an episode from a seed."""
        self.simulation.reset(seed)
        self._generator = torch.Generator().manual_seed(seed)
        std = np.array(self.policy.record.spec.increment_std[: self.policy.spec.plain_dim])
        self._sensor = Disturbances(Condition(obs_noise=1.0), seed, std)
        self.forget_history()

    @property
    def is_over(self) -> bool:
        """Return whether the episode has ended, at the latest at its time limit; the policy then rests.

        The time limit counts from the start, or from the moment when a user let go.
        """
        simulation = self.simulation
        return simulation.is_over or simulation.last - (simulation.released_at or 0) >= self._longest

    def forget_plan(self) -> None:
        """Drop the plan, so that the next period makes a new one, as after a change of the controls."""
        self.cancel_plan()
        self._plan = None
        self._used, self._queue = 0, PlanQueue()

    def forget_history(self) -> None:
        """Drop plan and observations, because a drag makes them invalid."""
        self._history = self.policy.spec.new_history()
        self._observe()
        self.forget_plan()

    def cancel_plan(self) -> None:
        """Remove the pending plan from the planner's queue, or ignore its result if it is running."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def is_planning(self, timeout_s: float) -> bool:
        """Return whether the next action is not planned within the timeout; start a plan if one is due."""
        controls, chunk = self.controls, self.controls.chunk_for(self.policy)
        if self.is_over or (self._plan is not None and self._used < chunk):
            return False
        if self._pending is None:
            longest = self.policy.model.config.longest_chunk
            steps = count_planned(chunk, controls.latency_steps, longest)
            sampling = controls.sampling_for(self.policy)
            self._pending = self.runner.submit_plan(self._history, self._generator, steps, sampling)
        pending = self._pending
        if not wait([pending], timeout_s).done:
            return True
        self._pending = None
        timed = pending.result()  # raises what the policy raised; the next period plans again
        self._plan, self._used = timed.plan, 0
        now, latency = self.simulation.last, controls.latency_steps
        self._queue.add(timed.plan.actions, now, latency=latency, chunk=chunk)
        self.runner.plan_s.append(timed.seconds)
        return False

    def step(self, drag: Drag | None, *, acts: bool = True) -> None:
        """Run one control period; if the policy does not act, the agent stays or follows a drag."""
        if drag is None and (self.is_over or not acts):
            self.simulation.rest()
            return
        action = self._choose_action(drag, acts and not self.is_over)
        dragged = np.array([drag.x, drag.y, drag.angle]) if drag and drag.what == "block" else None
        self.simulation.advance(action, dragged, by_user=drag is not None)
        self._history.add_action(action)
        self._observe()

    def view(self) -> dict[str, object]:
        """Return what to draw of the current control period."""
        controls, sampling = self.controls, self.controls.sampling_for(self.policy)
        history, spec = self._history, self.policy.spec
        table, state = self.simulation.table, self.simulation.state
        selects = self.policy.candidates > 1
        forecast = None if self.is_over else sample_paths(self.policy, history, sampling, controls.paths)
        present = history.states()[:1, None, : spec.obs_dim]
        futures = present if forecast is None or forecast.obs is None else forecast.obs
        ahead = self._queue.actions.reshape(-1, spec.act_dim)
        target, *plan = np.round(table.page.to_page(table.find_targets(state, history.last_action, ahead)), 1)
        return {
            **self.simulation.describe(),
            "ended": self.is_over,
            "target": target.tolist(),
            "plan": [position.tolist() for position in plan],
            "fan": describe_fan(forecast, spec, table),
            "compared": describe_candidates(self._plan, table) if selects and not self.is_over else None,
            "camera": describe_camera(spec, self._frame, futures),
            "sensed": table.describe(present[0, 0]) if controls.obs_noise and not spec.cameras else None,
            "thinking": self._pending is not None,
            "latency": self.runner.latency(controls),
        }

    def _choose_action(self, drag: Drag | None, acts: bool) -> np.ndarray:
        """Return the action of a drag, of the plan, or one that keeps the agent where it is."""
        table, state = self.simulation.table, self.simulation.state
        if drag is not None and drag.what == "agent":
            return table.command_point(state, table.page.from_page(np.array([drag.x, drag.y])))
        if acts and self._plan is not None:
            self._used += 1
            return table.clip(self._queue.pop(self.simulation.last, self._history.last_action))
        return table.command_point(state, state[table.agent])

    def _observe(self) -> None:
        """Add the current state to the policy's history, as its sensors and its camera see it."""
        table, state, spec = self.simulation.table, self.simulation.state, self.policy.spec
        noise = self.controls.obs_noise * self._sensor.add_noise(np.zeros(spec.plain_dim))
        if not spec.cameras:
            obs = state + noise
        else:
            (camera,) = spec.cameras
            self._frame = table.draw_camera(state, camera.width, camera.height)
            values = {STATE_KEY: table.measure(state) + noise, camera.name: self._frame}
            obs = self.policy.encode(values)
        self._history.add_observation(obs)
