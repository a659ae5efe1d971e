"""The rule of plan selection as plain numbers: which plans are compared, and how."""

from dataclasses import dataclass, replace
from typing import Literal

from nsde_policy.bounds import Natural, NonNegative
from nsde_policy.config import BaseConfig
from nsde_policy.errors import ConfigError

Kind = Literal["none", "goal", "support"]
Choice = Literal["auto", "none", "goal", "support"]
"""A kind of rule, or `auto` for the one that training chose."""

SUPPORT_NOISE = 1.2
"""Factor on the noise of candidates of the support rule: rejected plans leave room for more variety."""


@dataclass(frozen=True)
class SelectionRule(BaseConfig):
    """Content of rule.json: the chosen kind, and what each kind needs."""

    kind: Kind = "none"
    """Rule that is used unless the caller names another."""
    columns: tuple[Natural, ...] = ()
    """Observation columns in which the ends of demonstrations agree; empty if there is no goal."""
    threshold: NonNegative = 0.0
    """Largest distance from demonstrated observations that a plan may reach, in typical increments."""

    @property
    def candidates(self) -> int:
        """Plans that are compared."""
        return {"none": 1, "goal": 16, "support": 8}[self.kind]

    def horizon(self, steps: int) -> int:
        """Return how many actions of a plan are judged, given those of the settings.

        A correction near the goal is to go round and then push, which takes longer than one chunk.
        """
        return 2 * steps if self.kind == "goal" else steps

    def choose(self, choice: Choice) -> "SelectionRule":
        """Return the rule with another kind; `auto` keeps the kind that training chose."""
        kind = self.kind if choice == "auto" else choice
        if kind == "goal" and not self.columns:
            raise ConfigError(
                "the demonstrations end alike in no observation column, so there is no goal to select plans "
                "by: use --select support or --select none"
            )
        return replace(self, kind=kind)
