"""A policy on a table: it plans in its planner thread, and a user may interfere."""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from nsde_policy.assets import get_shipped_name
from nsde_policy.config import Sampling
from nsde_policy.control.worker import PlannerThread
from nsde_policy.core.spec import STATE_KEY
from nsde_policy.errors import PlanError
from nsde_policy.eval.rollouts.disturbances import (
    CameraDisturbances,
    Condition,
    Disturbances,
    PlanQueue,
    count_planned,
)
from nsde_policy.eval.rollouts.runner import make_generator
from nsde_policy.interface.planner import History, Plan
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.policy import Policy
from nsde_policy.tasks import Task, get_task
from nsde_policy.training.train import train_run

from .camera import describe_camera
from .controls import Controls
from .forecast import (
    describe_candidates,
    describe_fan,
    sample_paths,
)
from .messages import Drag
from .simulation import HISTORY_PERIODS, Simulation


class PanelPlan(NamedTuple):
    """A plan, the state of the random generator after it, and how long it took."""

    plan: Plan
    noise: torch.Tensor
    seconds: float


@dataclass(frozen=True)
class PolicyRunner:
    """A loaded policy with the thread that plans for it; several panels may share it."""

    name: str
    title: str
    policy: Policy
    plans: deque[PanelPlan] = field(default_factory=lambda: deque(maxlen=50))
    """The last plans with the current controls."""
    encode_s: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    """Durations of encoding the last camera frames, seconds."""
    thread: PlannerThread = field(default_factory=PlannerThread)

    def encode(self, values: np.ndarray, frame: np.ndarray) -> np.ndarray:
        """Encode measured values and the camera's frame, (obs_dim,)."""
        started = time.perf_counter()
        obs = self.policy.encode({STATE_KEY: values, self.policy.spec.cameras[0].name: frame})
        self.encode_s.append(time.perf_counter() - started)
        return obs

    def submit_plan(
        self, history: History, noise: torch.Tensor, steps: int, sampling: Sampling
    ) -> Future[PanelPlan]:
        """Queue a plan from a copy of `history`, with a random generator in the state `noise`."""
        history = history.copy()

        def plan() -> PanelPlan:
            generator = torch.Generator()
            generator.set_state(noise)
            started = time.perf_counter()
            made = self.policy.plan(history, generator=generator, steps=steps, sampling=sampling)
            return PanelPlan(made, generator.get_state(), time.perf_counter() - started)

        return self.thread.submit(plan)

    def latency(self, controls: Controls) -> dict[str, float] | None:
        """Return median time of a plan and its network calls; None before the first with these controls.

        The time includes encoding the camera frames that are new since the plan before. If candidates were
        compared in the last plan, or were not, the same holds for all plans that are counted.
        """
        if not self.plans:
            return None
        chunk, last = controls.chunk_for(self.policy), self.plans[-1]
        is_alone = last.plan.candidates is None
        frames = min(self.policy.spec.history, chunk)
        alike = [each.seconds for each in self.plans if (each.plan.candidates is None) == is_alone]
        seconds = median(alike) + frames * median(self.encode_s or [0.0])
        calls = self.policy.count_calls(last.plan, controls.sampling_for(self.policy))
        return {"ms": round(1e3 * seconds, 2), "actions": chunk, "calls": calls}


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


def load_neighbours(task: str) -> PolicyRunner:
    """Store the embedded demonstrations of a task as nearest neighbours, which takes a second."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "neighbours"
        train_run(None, get_task(task).preset("default", "knn"), run, task=task, seed=0)
        return load_runners([run])[0]


class PolicyPanel:
    """One policy on one table.

    It plays as `nsde-policy eval` does: the same seed gives the same episode until a user interferes, also
    with the noise, the latency and the camera of the controls.
    """

    def __init__(self, runner: PolicyRunner, task: Task, seed: int, controls: Controls) -> None:
        self.runner, self.policy, self.controls = runner, runner.policy, controls
        self._pending: Future[PanelPlan] | None = None
        self.simulation = Simulation(task, seed)
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start an episode from a seed."""
        self.simulation.reset(seed)
        self._noise = make_generator(seed).get_state()
        std = np.array(self.policy.record.spec.increment_std[: self.policy.spec.plain_dim])
        periods = np.zeros((HISTORY_PERIODS, len(std)))
        self._sensor_noise = Disturbances(Condition(obs_noise=1.0), seed, std).add_noise(periods)
        self.counts = True
        """Whether the result of this episode is still to be counted."""
        self.forget_history()

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended; the policy then rests."""
        return self.simulation.now.over

    def forget_plan(self) -> None:
        """Drop the plan, so that the next period makes a new one, as after a change of the controls."""
        self.cancel_plan()
        self._plan: Plan | None = None
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
            self._pending = self.runner.submit_plan(self._history, self._noise, steps, sampling)
        else:
            timeout_s = 0.0  # an earlier call has waited already
        try:
            error = self._pending.exception(timeout_s)
        except TimeoutError:
            return True
        pending, self._pending = self._pending, None
        if error is not None:
            raise error
        made = pending.result()
        if not np.isfinite(made.plan.actions).all():
            raise PlanError(f"{self.runner.title} planned actions that are not finite; the agent stays")
        self._plan, self._used, self._noise = made.plan, 0, made.noise
        now, latency = self.simulation.last, controls.latency_steps
        self._queue.add(made.plan.actions, now, latency=latency, chunk=chunk)
        self.runner.plans.append(made)
        return False

    def step(self, drag: Drag | None, *, acts: bool = True) -> None:
        """Run one control period; if the policy does not act, the agent stays or follows a drag."""
        if drag is None and (self.is_over or not acts):
            self.simulation.advance(None)
        else:
            action = self._choose_action(drag, acts and not self.is_over)
            dragged = np.array([drag.x, drag.y, drag.angle]) if drag and drag.what == "block" else None
            self.simulation.advance(action, dragged)
            self.counts &= drag is None
            self._history.add_action(action)
            self._observe()

    def view(self) -> dict[str, object]:
        """Return what to draw of the current control period."""
        controls, sampling = self.controls, self.controls.sampling_for(self.policy)
        history, spec = self._history, self.policy.spec
        table, now = self.simulation.table, self.simulation.now
        selects = self.policy.candidates > 1
        forecast = None if now.over else sample_paths(self.policy, history, sampling, controls.paths)
        present = history.states()[:1, None, : spec.obs_dim]
        futures = present if forecast is None or forecast.obs is None else forecast.obs
        ahead = self._queue.actions.reshape(-1, spec.act_dim)
        return {
            **self.simulation.describe(),
            "target": self._to_page(table.find_target(now.state, history.last_action)),
            "plan": self._to_page(table.find_targets(now.state, ahead)),
            "fan": describe_fan(forecast, spec, table),
            "compared": describe_candidates(self._plan, table) if selects and not now.over else None,
            "camera": describe_camera(spec, self._draw_frame(), futures),
            "sensed": table.describe(present[0, 0]) if controls.obs_noise and not spec.cameras else None,
            "thinking": self._pending is not None,
            "latency": self.runner.latency(controls),
        }

    def _choose_action(self, drag: Drag | None, acts: bool) -> np.ndarray:
        """Return the action of a drag, of the plan, or one that keeps the agent where it is."""
        table, state = self.simulation.table, self.simulation.now.state
        if drag is not None and drag.what == "agent":
            return table.command_point(state, table.page.from_page(np.array([drag.x, drag.y])))
        if acts and self._plan is not None:
            self._used += 1
            return table.clip(self._queue.pop(self.simulation.last, self._history.last_action))
        return table.command_point(state, state[table.agent])

    def _observe(self) -> None:
        """Add the current state to the policy's history."""
        table, state = self.simulation.table, self.simulation.now.state
        noise = self.controls.obs_noise * self._sensor_noise[self.simulation.last % HISTORY_PERIODS]
        self._camera = self.controls.camera
        frame = self._draw_frame()
        obs = state + noise if frame is None else self.runner.encode(table.measure(state) + noise, frame)
        self._history.add_observation(obs)

    def _draw_frame(self) -> np.ndarray | None:
        """Draw what the policy's camera sees, if it has one, as disturbed when it was last observed."""
        if not self.policy.spec.cameras:
            return None
        simulation, camera = self.simulation, self.policy.spec.cameras[0]
        frame = simulation.table.draw_camera(simulation.now.state, camera.width, camera.height)
        return CameraDisturbances(self._camera, simulation.seed).change_frame(frame, simulation.last + 1)

    def _to_page(self, points: np.ndarray) -> object:
        """Return positions as pixels of the page, for JSON."""
        return np.round(self.simulation.table.page.to_page(points), 1).tolist()
