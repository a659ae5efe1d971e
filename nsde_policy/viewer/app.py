"""Base class of the apps that the page can show."""

import abc
from typing import Any, ClassVar, Literal

from nsde_policy import __version__
from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.viewer import messages
from nsde_policy.viewer.simulation import Simulation


class App(abc.ABC):
    """Tables that are simulated side by side, and handle messages of clients.

    Only the simulation thread uses it, except for `hello`.
    """

    mode: ClassVar[Literal["play", "collect"]]
    revision = 0
    """Number that changes whenever `state` may have changed."""
    _epoch = 0
    _paused = False
    _viewed: int | None = None
    """Control period on display, if not the current one."""

    @property
    def period_s(self) -> float:
        """Wall-clock seconds of one control period."""
        return 1.0 / CONTROL_HZ

    @property
    def hello(self) -> dict[str, Any]:
        """First message to a client, everything that never changes: shapes, goal and success threshold."""
        return {
            "type": "hello",
            "mode": self.mode,
            "version": __version__,
            "side": geometry.SIDE,
            "radius": geometry.AGENT_RADIUS,
            "outline": geometry.OUTLINE,
            "centre": geometry.CENTRE_OF_GRAVITY,
            "goal": geometry.GOAL_POSE,
            "success": geometry.SUCCESS_COVERAGE,
            "hz": CONTROL_HZ,
        }

    def handle(self, message: messages.ClientMessage) -> None:
        """Handle a message; an `NsdePolicyError` is reported to its client and changes nothing."""
        if not isinstance(message, messages.Refresh):
            self._dispatch(message)
        if not isinstance(message, messages.Drag | messages.Release | messages.Scrub | messages.MoveAgent):
            self.revision += 1

    def state(self) -> dict[str, Any]:
        """Return what changes rarely; sent to all clients after changes and to each new client."""
        tables = self._tables
        return {
            "type": "state",
            "seed": tables[0].seed,
            "paused": self._paused,
            "epoch": self._epoch,
            "first": tables[0].first,
            "coverage": [[round(c, 3) for c in table.coverage] for table in tables],
        }

    def frame(self) -> dict[str, Any]:
        """Return what is drawn: poses, forecasts, coverage."""
        table = self._tables[0]
        return {
            "type": "frame",
            "epoch": self._epoch,
            "first": table.first,
            "last": table.last,
            "at": table.last if self._viewed is None else self._viewed,
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
