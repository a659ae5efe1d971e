"""Queue of plans that arrive late, as in a control loop."""

import numpy as np


def count_planned(chunk: int, latency_steps: int, longest: int | None) -> int:
    """Return how many actions to plan: a chunk, and those whose time has passed when the plan arrives.

    `longest` is the most actions that a plan of the policy can have; None for any number.
    """
    return min(chunk + latency_steps, longest or chunk + latency_steps)


class PlanQueue:
    """Plans that arrive late; until then, the one before is executed.

    The last command is repeated until the first plan arrives; later plans are requested early enough to
    follow the one before. Actions whose period has passed when a plan arrives are dropped, if the plan has
    actions left; with a latency of 2 periods:

        period      0 1 2 3 4 5 6 7 8 9 …
        requested   x               x
        planned     - - x x x x x x x x
        executed    hold x x x x x x x x …
    """

    def __init__(self) -> None:
        self.actions: np.ndarray = np.zeros((0, 0))
        """Actions of the plan in use that are not executed yet."""
        self._arriving: list[tuple[int, np.ndarray]] = []

    def add(self, planned: np.ndarray, now: int, *, latency: int, chunk: int) -> None:
        """Add a plan requested in control period `now`, of which `chunk` actions are needed."""
        passed = min(latency, len(planned) - min(chunk, len(planned)))
        self._arriving.append((now + latency, planned[passed:]))

    def pop(self, now: int, default: np.ndarray) -> np.ndarray:
        """Return the action of a control period; `default` if no plan has one."""
        if self._arriving and self._arriving[0][0] <= now:
            self.actions = self._arriving.pop(0)[1]
        if not len(self.actions):
            return default
        action: np.ndarray = self.actions[0]
        self.actions = self.actions[1:]
        return action
