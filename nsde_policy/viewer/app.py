"""Interface of the apps that the page can show."""

from typing import Any, Literal, Protocol

from nsde_policy import __version__
from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.viewer.messages import ClientMessage

Mode = Literal["play", "collect"]


class App(Protocol):
    """A simulation in control periods that handles messages of clients.

    Only the simulation thread uses it, except for `hello`.
    """

    @property
    def hello(self) -> dict[str, Any]:
        """First message to a client: everything that never changes."""

    @property
    def revision(self) -> int:
        """Number that changes whenever `state` may have changed."""

    @property
    def period_s(self) -> float:
        """Wall-clock seconds of one control period."""

    def handle(self, message: ClientMessage) -> None:
        """Handle a message; an `NsdePolicyError` is reported to its client and changes nothing."""

    def tick(self) -> bool:
        """Run one control period; return whether anything moved."""

    def state(self) -> dict[str, Any]:
        """Return what changes rarely; sent to all clients after changes and to each new client."""

    def frame(self) -> dict[str, Any]:
        """Return what is drawn: poses, forecasts, coverage."""


def describe_table(mode: Mode) -> dict[str, Any]:
    """Return the part of `hello` that both apps share: shapes, goal and success threshold."""
    return {
        "type": "hello",
        "mode": mode,
        "version": __version__,
        "side": geometry.SIDE,
        "radius": geometry.AGENT_RADIUS,
        "outline": geometry.OUTLINE,
        "centre": geometry.CENTRE_OF_GRAVITY,
        "goal": geometry.GOAL_POSE,
        "success": geometry.SUCCESS_COVERAGE,
        "hz": CONTROL_HZ,
    }


def round_trail(trail: list[list[float]]) -> list[list[float]]:
    """Round poses of agent and block to what can be seen."""
    return [[round(value, 2) for value in row[:4]] + [round(row[4], 4)] for row in trail]
