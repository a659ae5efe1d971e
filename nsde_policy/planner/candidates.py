"""How many plans are compared before one is executed: fewer before a plan is late."""

SLOW, QUICK, QUICK_SAMPLE = 0.5, 0.25, 0.125
"""Fractions of the deadline: a slower plan halves the number of candidates, a few quicker ones double it. A
comparison takes several times as long as one sample, so a plan without comparison has to be quicker."""
QUICK_PLANS = 3
"""Successive quick plans after which more candidates are compared again."""


class CandidateBudget:
    """Number of plans that a planner compares, adapted to the time that planning took.

    A planner that compares plans has `candidates`, their number, and takes a smaller one as an argument.
    """

    def __init__(self, planner: object) -> None:
        most = getattr(planner, "candidates", 1)
        self._count = self._most = most if isinstance(most, int) else 1
        self._quick_plans = 0

    @property
    def argument(self) -> dict[str, int]:
        """Argument for the planner; none if it compares nothing."""
        return {"candidates": self._count} if self._most > 1 else {}

    def update(self, seconds: float, deadline_s: float, *, compared: bool) -> None:
        """Choose the next number after a plan that took some time, and compared several plans or not."""
        is_quick = seconds < (QUICK if compared else QUICK_SAMPLE) * deadline_s
        self._quick_plans = self._quick_plans + 1 if is_quick else 0
        if seconds > SLOW * deadline_s:
            self._count = max(self._count // 2, 1)
        elif self._quick_plans == QUICK_PLANS:
            self._count = min(2 * self._count, self._most)
            self._quick_plans = 0
