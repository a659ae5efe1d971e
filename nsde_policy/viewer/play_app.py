"""App of `nsde-policy play`: one or two policies side by side, which users can disturb."""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

from nsde_policy.envs.live import LiveTable
from nsde_policy.errors import ConfigError, RemoteError
from nsde_policy.tasks import Task, get_task, get_task_of_run

from . import messages
from .app import App
from .controls import RANGES, Controls
from .policy_runner import PolicyPanel, PolicyRunner
from .simulation import Simulation

REST_S = 2.0
"""Time for which the end of an episode is shown before the next seed starts, if `next_at_end` is on."""
COUNTED = 20
"""Most episodes of a method whose results are shown."""
_PLAN_CONTROLS = {"alpha", "diffusion", "chunk", "latency_steps"}
_VIEW_CONTROLS = {"paths", "speed", "next_at_end"}
"""Controls that change no episode."""


class PlayApp(App):
    """App of one or two panels; the first of the `runners` plays first.

    A control period waits up to `plan_timeout_s` for a plan before messages are handled again; simulated time
    stands still until the plan is there.
    """

    mode = "play"

    def __init__(self, runners: Sequence[PolicyRunner], *, seed: int, plan_timeout_s: float = 0.1) -> None:
        super().__init__(find_common_task(runners))
        for runner in runners:
            check_sizes(runner, self._table)
        self._runners = {runner.name: runner for runner in runners}
        self._controls = Controls.from_policy(runners[0].policy)
        self._first_settings: tuple[Controls, bool] | None = None
        self._results = {name: deque[bool](maxlen=COUNTED) for name in self._runners}
        self._panels = [PolicyPanel(runners[0], self._task, seed, self._controls)]
        self._rested, self._plan_timeout_s = 0, plan_timeout_s
        self._one_step = False
        self._drag: messages.Drag | None = None
        self._repeated: deque[messages.DraggedPose] = deque()
        self._releasing = self._replan = False

    @property
    def _tables(self) -> list[Simulation]:
        return [panel.simulation for panel in self._panels]

    @property
    def hello(self) -> messages.PageMessage:
        """Table, methods and ranges of the controls."""
        return {
            **super().hello,
            "ranges": RANGES,
            "methods": [
                {
                    "name": runner.name,
                    "title": runner.title,
                    "sde": runner.policy.model.foresees_states,
                    "camera": bool(runner.policy.spec.cameras),
                    "selects": runner.policy.candidates > 1,
                }
                for runner in self._runners.values()
            ],
        }

    @property
    def period_s(self) -> float:
        """Wall-clock seconds of one control period."""
        return super().period_s / self._controls.speed

    def state(self) -> messages.PageMessage:
        """Return controls, panels, and the progress in every control period in the history."""
        return {
            **super().state(),
            "controls": self._controls.to_dict(),
            "panels": [panel.runner.name for panel in self._panels],
            "latency": {runner.name: runner.latency(self._controls) for runner in self._runners.values()},
            "drags": self._tables[0].drags,
            "results": {name: [*results] for name, results in self._results.items()},
        }

    def frame(self) -> messages.PageMessage:
        """Return the current control period of every panel."""
        return {**super().frame(), "panels": [panel.view() for panel in self._panels]}

    def tick(self) -> bool:
        """Step every panel; wait if paused or if all have ended."""
        if self._paused and self._drag is None and not self._one_step:
            return False
        ended = all(self._has_ended(panel) for panel in self._panels)
        if self._repeated and (self._drag or ended or self._repeated[0][0] <= self._tables[0].last):
            self._repeat_drag()
        if self._drag is None and ended:
            self._rested += 1
            if not self._controls.next_at_end or self._rested * super().period_s < REST_S:
                return False
            self._reset(messages.next_seed(self._tables[0].seed))
            return True
        self._step()
        return True

    def _dispatch(self, message: messages.ClientMessage) -> None:
        match message:
            case messages.Pause(on):
                self._paused, self._one_step = on, False
            case messages.Step():
                self._paused = self._one_step = True
            case messages.Reset(seed, drags):
                self._reset(seed, drags)
            case messages.SetControl(name, value):
                self._change_controls(self._controls.with_value(name, value))
            case messages.Restore():
                self._first_settings = self._first_settings or (self._controls, self._paused)
                controls, self._paused = self._first_settings
                self._change_controls(controls)
            case messages.SelectMethods(names):
                self._select_methods(names)
            case messages.Drag():  # if paused, the simulation runs meanwhile, but the policy does not act
                self._drag, self._releasing = message, False
                self._repeated.clear()
            case messages.Release():
                self._releasing = self._drag is not None
            case _:
                raise RemoteError(f"{message.tag!r} is a message for recording: run nsde-policy collect")

    def close(self, timeout_s: float) -> bool:
        """Stop planning; return whether running plans ended within the timeout."""
        for panel in self._panels:
            panel.cancel_plan()
        ends = time.monotonic() + timeout_s
        closed = [each.thread.close(max(0.0, ends - time.monotonic())) for each in self._runners.values()]
        return all(closed)

    def _step(self) -> None:
        """Run one control period in every panel; while a panel is planning, all wait unless a user drags."""
        if self._replan:
            for panel in self._panels:
                panel.forget_plan()
            self._replan = False
        acting = not self._paused or self._one_step
        planning = [acting and panel.is_planning(self._plan_timeout_s) for panel in self._panels]
        if self._drag is None and any(planning):
            return
        for panel, busy in zip(self._panels, planning, strict=True):
            panel.step(self._drag, acts=acting and not busy)
        self._rested, self._one_step = 0, False
        self._count_results()
        if self._releasing:
            for panel in self._panels:
                panel.forget_history()
            self._drag, self._releasing = None, False
            self.revision += 1

    def _has_ended(self, panel: PolicyPanel) -> bool:
        """Return whether an episode is over, or at its time limit if the next one is to follow."""
        played = panel.simulation.last - (panel.simulation.released_at or 0)
        limit = self._table.limit_s * self.rate_hz if self._controls.next_at_end else math.inf
        return panel.is_over or played >= limit

    def _count_results(self) -> None:
        """Count episodes in which no user interfered, when they are over or at their time limit."""
        for panel in self._panels:
            is_late = panel.simulation.last >= self._table.limit_s * self.rate_hz
            if panel.counts and (panel.is_over or is_late):
                panel.counts = False
                self._results[panel.runner.name].append(panel.simulation.now.solved)
                self.revision += 1

    def _repeat_drag(self) -> None:
        """Drag the block as in the episode that is repeated; a gap in the control periods is a release."""
        period, *pose = self._repeated.popleft()
        self._drag = messages.Drag("block", *pose)
        self._releasing = not self._repeated or self._repeated[0][0] > period + 1

    def _reset(self, seed: int, drags: Iterable[messages.DraggedPose] = ()) -> None:
        self._repeated = deque(drags)
        self._drag, self._rested = None, 0
        self._releasing = self._one_step = False
        self._epoch += 1
        self.revision += 1
        for panel in self._panels:
            panel.reset(seed)

    def _change_controls(self, controls: Controls) -> None:
        changed = {name for name in RANGES if getattr(controls, name) != getattr(self._controls, name)}
        self._controls = controls
        for panel in self._panels:
            panel.controls = controls
        if changed - _VIEW_CONTROLS:
            for results in self._results.values():
                results.clear()
        if changed & _PLAN_CONTROLS:
            self._replan = True
            for runner in self._runners.values():
                runner.plans.clear()  # they were measured with other controls

    def _select_methods(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._runners:
                raise RemoteError(f"unknown method {name!r:.60}; expected one of {', '.join(self._runners)}")
        for panel in self._panels:
            panel.cancel_plan()
        seed = self._tables[0].seed
        self._panels = [PolicyPanel(self._runners[name], self._task, seed, self._controls) for name in names]
        self._reset(seed)


def find_common_task(runners: Sequence[PolicyRunner]) -> Task:
    """Return the task of policies that play side by side; raise `ConfigError` if they have several."""
    for record in (runner.policy.record for runner in runners):
        get_task(record.task).live_table()  # raises if it has no page
    tasks = [get_task_of_run(runner.policy.record) for runner in runners]
    for runner, task in zip(runners, tasks, strict=True):
        if task.name != tasks[0].name:
            raise ConfigError(
                f"{runner.name} was trained for the task {task.name} and {runners[0].name} for "
                f"{tasks[0].name}: play them one after the other"
            )
    return tasks[0]


def check_sizes(runner: PolicyRunner, table: LiveTable) -> None:
    """Raise `ConfigError` if the sizes of a policy do not fit the table."""
    spec = runner.policy.spec
    found = spec.plain_dim, len(spec.cameras), spec.act_dim
    if found not in table.sizes:
        expected = " or ".join("{}, {} and {}".format(*sizes) for sizes in table.sizes)
        raise ConfigError(
            f"{runner.name} has {found[0]} observations, {found[1]} cameras and {found[2]} actions; policies "
            f"that can play on this table have {expected}"
        )
