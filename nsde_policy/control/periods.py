"""The command of each policy period: what the policy is told it did, and what the report calls smooth."""

from collections.abc import Sequence

import numpy as np

from nsde_policy.control.clock import TimeGrid
from nsde_policy.control.report import CommandRecord, Recorder


class PeriodCommands:
    """Keeps the command closest to the middle of each policy period: the one that the policy planned.

    Changes per period (`delta_columns`) of one period add up.
    """

    def __init__(self, grid: TimeGrid, recorder: Recorder, *, delta_columns: Sequence[int] = ()) -> None:
        self._grid, self._recorder, self._deltas = grid, recorder, list(delta_columns)
        self.command: np.ndarray | None = None
        """Command of the newest period, (act_dim,)."""
        self.restart()

    def restart(self) -> None:
        """Forget the period: periods are counted from zero again."""
        self._middle: tuple[int, np.ndarray, int | None] | None = None

    def update(self, command: CommandRecord, period: int) -> None:
        """Register a command that was sent in a policy period."""
        if self._middle is not None and self._middle[0] != period:
            self._recorder.record_period(*self._middle)
            self._middle = None
        action = command.action
        if self._deltas and self._middle is not None:
            action = action.copy()
            action[self._deltas] += self._middle[1][self._deltas]
        half_tick = 0.5 * self._grid.policy_hz / self._grid.rate_hz
        if self._middle is None or self._grid.midpoint(command.time) <= period + half_tick + 1e-9:
            self._middle = period, action, command.plan
            self.command = action
