"""App of `nsde-policy collect`: the agent follows the pointer, the user keeps or discards episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from nsde_policy.data import Episode
from nsde_policy.data.collection import Collection, EpisodeInfo
from nsde_policy.data.types import MIN_STEPS
from nsde_policy.envs.live import PAGE_SIDE
from nsde_policy.errors import DemoError, RemoteError
from nsde_policy.eval.rollouts.episode import CompressedFrames
from nsde_policy.run_directory import find_versions
from nsde_policy.tasks.base import Task

from . import messages
from .app import App
from .simulation import Simulation

Phase = Literal["ready", "recording", "paused", "done"]

RECORDED_SIDE = 96
"""Side of recorded camera frames, pixels."""
REACH = 40.0
"""Distance from the agent at which the pointer takes hold of it, pixels of the page; small, or the recording
would begin with a jump."""


def open_collection(path: Path, task: Task, images: Sequence[str] = ()) -> Collection:
    """Start or continue demonstrations recorded by hand, with camera frames of these names."""
    made_with = {"by": "teleoperation", "env": task.env_id or task.name, "env_kwargs": dict(task.env_kwargs)}
    return Collection(
        path,
        resume=True,
        rate_hz=task.rate_hz,
        angles=task.training.demos.angles,
        made_with={**made_with, **({"images": list(images)} if images else {})},
        provenance={"input": "pointer on the page of nsde-policy collect", "versions": find_versions()},
    )


class RecordApp(App):
    """App that records demonstrations.

    The phases of an episode:

    - ready: the agent waits for the pointer;
    - recording: the agent follows the pointer; every control period, the state and the action are recorded;
    - paused: the pointer or the client has left; simulated time stands still until the pointer is back;
    - done: the episode has ended, or the time limit is reached.

    After a kept episode the next seed starts, after a discarded one the same seed.
    """

    mode = "collect"
    _phase: Phase
    _target: np.ndarray
    """Position to which the pointer leads the agent, pixels of the page."""

    def __init__(
        self, task: Task, collection: Collection, *, seed_start: int, images: Sequence[str] = ()
    ) -> None:
        super().__init__(task)
        self._collection, self._images = collection, images
        episodes = collection.episodes
        self._simulation = Simulation(task, messages.next_seed(episodes[-1].seed) if episodes else seed_start)
        self._start_episode(self._simulation.seed)

    @property
    def _tables(self) -> list[Simulation]:
        return [self._simulation]

    def state(self) -> messages.PageMessage:
        """Return the size of the store and the phase of the episode."""
        episodes = self._collection.episodes
        return {
            **super().state(),
            "panels": ["you"],
            "store": self._collection.path.name,
            "kept": len(episodes),
            "solved": sum(bool(episode.success) for episode in episodes),
            "phase": self._phase,
        }

    def frame(self) -> messages.PageMessage:
        """Return the current control period."""
        simulation = self._simulation
        target = np.round(self._target, 1).tolist()
        panel = {**simulation.describe(), "target": target, "ended": self._phase == "done"}
        return {**super().frame(), "panels": [panel]}

    def tick(self) -> bool:
        """While recording, record one control period and run it."""
        if self._phase != "recording":
            return False
        table, state = self._simulation.table, self._simulation.state
        self._observations.append(state)
        if self._images:
            self._frames.append(table.draw_camera(state, RECORDED_SIDE, RECORDED_SIDE))
        action = table.command_point(state, table.page.from_page(self._target))
        self._actions.append(action)
        self._simulation.advance(action)
        if self._simulation.is_over or len(self._actions) >= round(table.longest_s * self.rate_hz):
            self._change_phase("recording", "done")
        return True

    def _dispatch(self, message: messages.ClientMessage) -> None:
        match message:
            case messages.MoveAgent(x, y):
                self._lead_agent(np.clip((x, y), 0.0, PAGE_SIDE))
            case messages.Release():
                self._change_phase("recording", "paused")
            case messages.KeepEpisode():
                self._keep_episode()
            case messages.Discard():
                self._start_episode(self._simulation.seed)
            case messages.Undo():
                self._start_episode(self._collection.undo().seed)
            case messages.Reset(seed):
                self._start_episode(seed)
            case _:
                raise RemoteError(f"{type(message).__name__} is a message for nsde-policy play")

    def _lead_agent(self, target: np.ndarray) -> None:
        """Move the agent towards the pointer, once that has reached it."""
        if np.linalg.norm(target - self._simulation.trail[-1][:2]) < REACH:
            self._change_phase("ready", "recording")
            self._change_phase("paused", "recording")
        if self._phase == "recording":
            self._target = target

    def _change_phase(self, before: Phase, after: Phase) -> None:
        if self._phase == before:
            self._phase = after
            self.revision += 1

    def _keep_episode(self) -> None:
        steps = len(self._actions)
        if steps < MIN_STEPS:
            raise DemoError(f"an episode needs at least {MIN_STEPS} control periods, got {steps}: move first")
        simulation = self._simulation
        outcome = self._task.outcome(simulation.rewards, simulation.infos)
        episode = Episode(np.array(self._observations, np.float32), np.array(self._actions, np.float32))
        images = dict.fromkeys(self._images, self._frames)
        self._collection.add(episode, EpisodeInfo(simulation.seed, outcome.success, outcome.score), images)
        self._start_episode(messages.next_seed(simulation.seed))

    def _start_episode(self, seed: int) -> None:
        self._simulation.reset(seed)
        self._epoch += 1
        self._phase, self._target = "ready", np.array(self._simulation.trail[-1][:2])
        self._observations: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []
        self._frames = CompressedFrames()
