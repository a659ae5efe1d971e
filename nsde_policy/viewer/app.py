"""Base class of the apps that the page can show."""

import abc
from typing import ClassVar, Literal

from nsde_policy.errors import ConfigError
from nsde_policy.tasks.base import Task

from . import messages
from .simulation import Simulation


class App(abc.ABC):
    """Tables that are simulated side by side, and handle messages of clients; not thread-safe."""

    mode: ClassVar[Literal["play", "collect"]]
    revision = 0
    """Number that changes whenever `state` may have changed."""
    _epoch = 0
    _paused = False

    def __init__(self, task: Task) -> None:
        self._task, self._table = task, task.live_table()
        scene = task.drawing.scene()
        if scene is None or task.rate_hz is None:
            raise ConfigError(f"{task.name} has no live page: its task defines no scene or no rate_hz")
        self.scene = scene
        """Script and shapes with which the page draws the task."""
        self.rate_hz = task.rate_hz
        """Control periods per second of simulated time."""

    @property
    def period_s(self) -> float:
        """Wall-clock seconds of one control period."""
        return 1.0 / self.rate_hz

    @property
    def hello(self) -> messages.PageMessage:
        """First message to a client, everything that never changes: shapes, texts and success threshold."""
        return {
            "type": "hello",
            "mode": self.mode,
            **self.scene.geometry,
            "success": self._task.drawing.success_progress,
            "hz": self.rate_hz,
            "unit": self._table.unit,
            "texts": self._table.texts,
        }

    def handle(self, message: messages.ClientMessage) -> None:
        """Handle a message; an `NsdePolicyError` is reported to its client and changes nothing."""
        self._dispatch(message)
        if not isinstance(message, messages.Drag | messages.Release | messages.MoveAgent):
            self.revision += 1

    def state(self) -> messages.PageMessage:
        """Return what changes rarely; sent to all clients after changes and to each new client."""
        tables = self._tables
        return {
            "type": "state",
            "seed": tables[0].seed,
            "paused": self._paused,
            "epoch": self._epoch,
            "progress": [[round(progress, 3) for progress in table.progress] for table in tables],
        }

    def frame(self) -> messages.PageMessage:
        """Return what all frames share; apps add their panels."""
        return {
            "type": "frame",
            "epoch": self._epoch,
            "last": self._tables[0].last,
            "paused": self._paused,
        }

    @abc.abstractmethod
    def tick(self) -> bool:
        """Run one control period; return whether anything moved."""

    @property
    @abc.abstractmethod
    def _tables(self) -> list[Simulation]: ...

    @abc.abstractmethod
    def _dispatch(self, message: messages.ClientMessage) -> None: ...
