"""What the one page can show, to those who run it and those who serve it."""

from typing import Any, Literal, Protocol

from nsde_policy import __version__
from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.viewer.messages import Command

Mode = Literal["play", "collect"]


class Stage(Protocol):
    """Something that goes on in control periods, listens to commands, and can be drawn.

    Only one thread touches it; `hello` alone may be asked from others.
    """

    @property
    def hello(self) -> dict[str, Any]:
        """What never changes, for a page that has just come."""

    @property
    def revision(self) -> int:
        """Another number wherever `state` may have changed."""

    @property
    def period_s(self) -> float:
        """Seconds from one control period to the next."""

    def handle(self, command: Command) -> None:
        """Do what a page asks for; an `NsdePolicyError` is told to that page and changes nothing."""

    def tick(self) -> bool:
        """Run one control period; False where nothing moved."""

    def state(self) -> dict[str, Any]:
        """Everything but the moment: sent when it changed, or when somebody new looks on."""

    def frame(self) -> dict[str, Any]:
        """The moment."""


def table(mode: Mode) -> dict[str, Any]:
    """What every page is told first: the shapes on the table, and what counts as success."""
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
