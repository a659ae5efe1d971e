"""Progress of a training on a terminal or in the log."""

import logging
import time
from collections.abc import Mapping

from tqdm import tqdm

logger = logging.getLogger(__name__)

TIMED_STEPS = 2
"""Steps whose duration gives the first estimate; the step before them is slower."""


class ProgressBar:
    """Progress bar on a terminal, otherwise about ten lines of the log; nothing unless the log shows INFO."""

    def __init__(self, title: str, step: int, steps: int) -> None:
        self._title = title
        self._steps = steps
        self._first = step
        self._logged: int | None = None
        self._started = 0.0
        is_shown = logger.isEnabledFor(logging.INFO)
        self._bar = tqdm(
            desc=title,
            initial=step,
            total=steps,
            unit="step",
            dynamic_ncols=True,
            disable=None if is_shown else True,  # None: without a terminal
        )

    def close(self) -> None:
        """Leave the bar on the terminal."""
        self._bar.close()

    def update(self, step: int) -> None:
        """Move the bar to a step; without a bar, log an estimate once two steps are timed."""
        self._bar.update(step - self._bar.n)
        taken = step - self._first
        if taken == 1:
            self._started = time.monotonic()
        elif taken == 1 + TIMED_STEPS and self._bar.disable:
            more = self._steps - step
            left = tqdm.format_interval((time.monotonic() - self._started) / TIMED_STEPS * more)
            logger.info("%s: about %s for %d more steps", self._title, left, more)

    def show(self, step: int, seconds: float, losses: Mapping[str, float]) -> None:
        """Show the losses of a step, after a number of seconds."""
        figures = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items()) or "nothing to fit"
        self._bar.set_postfix_str(figures, refresh=False)
        is_due = self._logged is None or step - self._logged >= self._steps / 10 or step == self._steps
        if self._bar.disable and is_due:
            self._logged = step
            left = tqdm.format_interval(seconds / (step - self._first) * (self._steps - step))
            where = f"{self._title} step {step}/{self._steps}"
            logger.info("%s, %.0f s, about %s left: %s", where, seconds, left, figures)
