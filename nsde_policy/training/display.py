"""Progress of a training: a bar or lines of the log, and an estimate of the duration."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from nsde_policy.training.loop import Training

logger = logging.getLogger(__name__)

TIMED_STEPS = 2
"""Steps whose duration gives the estimate."""
SECONDS_PER_UNIT = {"h": 3600, "min": 60, "s": 1}
"""Units of an estimate, largest first."""


class ProgressDisplay:
    """Progress bar on a terminal, otherwise about ten lines of the log; nothing unless the log shows INFO.

    Args:
        training: The training, at its first step or at the one it is resumed from.
        steps: Steps of the whole training.
        title: Name of the training.
    """

    def __init__(self, training: Training[Any], steps: int, title: str) -> None:
        self._training = training
        self._steps = steps
        self._title = title
        self._logged = training.step
        self._timed_from = training.step + training.warm_up_steps
        self._started = 0.0
        is_shown = logger.isEnabledFor(logging.INFO)
        self._bar = tqdm(
            desc=title,
            initial=training.step,
            total=steps,
            unit="step",
            dynamic_ncols=True,
            disable=None if is_shown else True,  # None: without a terminal
        )

    def close(self) -> None:
        """Leave the bar on the terminal."""
        self._bar.close()

    def update(self) -> None:
        """Move the bar to the current step; once enough steps are timed, log an estimate of the duration."""
        step = self._training.step
        self._bar.update(step - self._bar.n)
        if step == self._timed_from:
            self._training.synchronize()
            self._started = time.monotonic()
        elif step == self._timed_from + TIMED_STEPS:
            self._training.synchronize()
            each = (time.monotonic() - self._started) / TIMED_STEPS
            duration = format_duration(each * (self._steps - step))
            logger.info("%s: about %s for %d more steps", self._title, duration, self._steps - step)

    def show(self, seconds: float, losses: Mapping[str, float]) -> None:
        """Show the losses of a record."""
        step = self._training.step
        figures = format_figures(losses, ".3g") or "nothing to fit"
        self._bar.set_postfix_str(figures, refresh=False)
        if self._bar.disable and (step - self._logged >= self._steps / 10 or step == self._steps):
            self._logged = step
            where = f"{self._title}, " if self._title != "training" else ""
            logger.info("%sstep %d/%d, %.0f s: %s", where, step, self._steps, seconds, figures)


def format_figures(figures: Mapping[str, float], spec: str) -> str:
    """Format named numbers, such as losses, on one line."""
    return ", ".join(f"{name} {value:{spec}}" for name, value in figures.items())


def format_duration(seconds: float) -> str:
    """Format a rough duration in its largest unit: 2.5 h, 40 min, 3 s."""
    unit = next((unit for unit, size in SECONDS_PER_UNIT.items() if seconds >= size), "s")
    value = seconds / SECONDS_PER_UNIT[unit]
    return f"{value:.{1 if value < 10 else 0}f} {unit}"
