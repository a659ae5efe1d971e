"""App of `nsde-policy play`: one or two policies side by side, which users can disturb."""

from collections.abc import Sequence

from nsde_policy.errors import ConfigError, RemoteError
from nsde_policy.eval.rollouts.runner import make_adapter
from nsde_policy.tasks import Task, get_task_of_run

from . import messages
from .app import App
from .controls import RANGES, VIEW_CONTROLS, Controls
from .policy_runner import PolicyPanel, PolicyRunner
from .simulation import Simulation


class PlayApp(App):
    """App of one or two panels; the first of the `runners` plays first.

    A control period waits up to `plan_timeout_s` for a plan before messages are handled again; simulated time
    stands still until the plan is there.
    """

    mode = "play"

    def __init__(self, runners: Sequence[PolicyRunner], *, seed: int, plan_timeout_s: float = 0.1) -> None:
        super().__init__(find_common_task(runners))
        self._runners = {runner.name: runner for runner in runners}
        self._controls = Controls.from_policy(runners[0].policy)
        self._plan_timeout_s = plan_timeout_s
        self._drag: messages.Drag | None = None
        self._releasing = False
        self._panels = [PolicyPanel(runners[0], self._task, seed, self._controls)]

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
                    "sde": runner.policy.model.predicts_states,
                    "denoiser": "alpha" in runner.policy.model.config.adjustable_sampling,
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
        """Return controls, panels, and the progress in every control period."""
        return {
            **super().state(),
            "controls": self._controls.to_dict(),
            "panels": [panel.runner.name for panel in self._panels],
        }

    def frame(self) -> messages.PageMessage:
        """Return the current control period of every panel."""
        return {**super().frame(), "panels": [panel.view() for panel in self._panels]}

    def tick(self) -> bool:
        """Step every panel; wait if paused or if all have ended."""
        if self._drag is None and (self._paused or all(panel.is_over for panel in self._panels)):
            return False
        self._step()
        return True

    def _dispatch(self, message: messages.ClientMessage) -> None:
        match message:
            case messages.Pause(on):
                self._paused = on
            case messages.Reset(seed):
                for panel in self._panels:
                    panel.reset(seed)
                self._begin_episode()
            case messages.SetControl(name, value):
                self._change_control(name, value)
            case messages.SelectMethods(names):
                self._select_methods(names)
            case messages.Drag():  # if paused, the simulation runs meanwhile, but the policy does not act
                self._drag, self._releasing = message, False
            case messages.Release():
                self._releasing = self._drag is not None
            case _:
                raise RemoteError(f"{type(message).__name__} is a message for nsde-policy collect")

    def _step(self) -> None:
        """Run one control period in every panel; while a panel is planning, all wait unless a user drags."""
        acting = not self._paused
        planning = [acting and panel.is_planning(self._plan_timeout_s) for panel in self._panels]
        if self._drag is None and any(planning):
            return
        for panel, busy in zip(self._panels, planning, strict=True):
            panel.step(self._drag, acts=acting and not busy)
        if self._releasing:
            for panel in self._panels:
                panel.forget_history()
            self._drag, self._releasing = None, False

    def _begin_episode(self) -> None:
        self._drag, self._releasing = None, False
        self._epoch += 1
        self.revision += 1

    def _change_control(self, name: str, value: float) -> None:
        self._controls = self._controls.with_value(name, value)
        for panel in self._panels:
            panel.controls = self._controls
        if name not in VIEW_CONTROLS:
            for runner in self._runners.values():
                runner.plan_s.clear()  # they were measured with other controls
            for panel in self._panels:
                panel.forget_plan()

    def _select_methods(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._runners:
                raise RemoteError(f"unknown method {name!r:.60}; expected one of {', '.join(self._runners)}")
        for panel in self._panels:
            panel.cancel_plan()
        seed = self._tables[0].seed
        self._panels = [PolicyPanel(self._runners[name], self._task, seed, self._controls) for name in names]
        self._begin_episode()


def find_common_task(runners: Sequence[PolicyRunner]) -> Task:
    """Return the task of policies that play side by side.

    Raises:
        ConfigError: If they were trained for several.
        EnvError: If the sizes of a policy do not fit the environment of its task.
    """
    tasks = [get_task_of_run(runner.policy.record) for runner in runners]
    for runner, task in zip(runners, tasks, strict=True):
        if task.name != tasks[0].name:
            raise ConfigError(
                f"{runner.name} was trained for the task {task.name} and {runners[0].name} for "
                f"{tasks[0].name}: play them one after the other"
            )
        make_adapter(task, runner.policy.record).close()
    return tasks[0]
