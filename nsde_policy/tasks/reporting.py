"""How results of a task are reported: words for tables, and modes that tell its episodes apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsde_policy.errors import EnvError

if TYPE_CHECKING:
    from nsde_policy.tasks.base import Task


@dataclass(frozen=True)
class Reporting:
    """Words for the tables of reports and comparisons, and the number of modes."""

    title: str = ""
    """Title in reports; by default the name of the task."""
    success_name: str = "success"
    """Title of the share of successful episodes in tables."""
    score_note: str = ""
    """What score and success mean, for the notes below a table."""
    modes: int = 0
    """Number of different ways to succeed, which the environment numbers from 0 in `info["mode"]`; 0 if the
    task tells none apart."""


def read_episode_mode(task: Task, info: Mapping[str, Any]) -> int | None:
    """Return the mode of an episode, given its last info: -1 if unknown, None if the task has no modes.

    Raises:
        EnvError: If `info["mode"]` is not a whole number from -1 to `modes` - 1.
    """
    modes = task.reporting.modes
    if not modes:
        return None
    value = info.get("mode", -1)
    number = value.item() if getattr(value, "size", None) == 1 else value
    if isinstance(number, bool) or not isinstance(number, int) or not -1 <= number < modes:
        found = f"{' '.join(repr(value).split()):.60}"
        raise EnvError(
            f"environment {task.env_id or task.name}: info['mode'] is {found}, "
            f"expected a whole number from 0 to {modes - 1}, or -1 if the mode is unknown"
        )
    return number
