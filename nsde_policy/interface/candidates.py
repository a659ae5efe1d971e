"""How many plans are compared before one is executed: fewer before a plan is late."""

SLOW, QUICK, QUICK_SAMPLE = 0.5, 0.25, 0.125
"""Fractions of the deadline: a slower plan halves the number of candidates, a few quicker ones double it. A
comparison takes several times as long as one sample, so a plan without comparison has to be quicker."""
QUICK_PLANS = 3
"""Successive quick plans after which more candidates are compared again."""


class CandidateBudget:
    """Number of plans that a planner compares, adapted to the time that planning took."""

    def __init__(self, most: int) -> None:
        self.count = self._most = most
        self._quick_plans = 0

    def update(self, seconds: float, deadline_s: float, *, compared: bool) -> None:
        """Choose the next number after a plan that took some time, and compared several plans or not."""
        is_quick = seconds < (QUICK if compared else QUICK_SAMPLE) * deadline_s
        self._quick_plans = self._quick_plans + 1 if is_quick else 0
        if seconds > SLOW * deadline_s:
            self.count = max(self.count // 2, 1)
        elif self._quick_plans == QUICK_PLANS:
            self.count = min(2 * self.count, self._most)
            self._quick_plans = 0
