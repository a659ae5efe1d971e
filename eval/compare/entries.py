"""Entry of a comparison: the episodes of one trained run under one setting, and their costs."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from nsde_policy.selection.rule import Kind
from nsde_policy.tasks import Task

from ..rollouts.disturbances import Condition
from ..rollouts.episode import EpisodeResult

DECIMALS = 5
"""Decimal places of numbers in result files."""


class Episodes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outcomes of one run in columns, one value per seed, in the order of the seeds."""

    seed: tuple[int, ...]
    score: tuple[float, ...]
    """Score of each episode; `Task.score_name` says what it is."""
    success: tuple[bool, ...] | None
    """None if the environment does not report successes."""
    metrics: Mapping[str, tuple[float, ...]]
    """Further figures of the task, by name."""
    steps: tuple[int, ...]
    modes: int = 0
    """Number of modes of the task; 0 if it has none."""
    mode: tuple[int, ...] | None = None
    """Mode of each episode from 0, -1 if unknown; None if the task has none."""
    success_step: tuple[int | None, ...] | None = None
    """Actions before the first success of each episode, None without; None if all end with their success."""

    def __len__(self) -> int:
        return len(self.seed)

    @property
    def succeeded(self) -> np.ndarray:
        """Whether each episode succeeded, (episodes,) bool; all did if successes are not reported."""
        return np.ones(len(self), bool) if self.success is None else np.array(self.success)

    @property
    def modes_taken(self) -> np.ndarray:
        """Whether each episode succeeded in each mode, (episodes, modes) of 0 and 1."""
        taken = np.array(self.mode)[:, None] == np.arange(self.modes)
        counted: np.ndarray = taken * self.succeeded[:, None] * 1.0
        return counted

    @property
    def successes_by_mode(self) -> np.ndarray:
        """Number of successes in each mode, (modes,)."""
        counts: np.ndarray = self.modes_taken.sum(axis=0).astype(int)
        return counts

    @property
    def distinct_modes(self) -> int:
        """Number of modes with at least one success."""
        return int((self.successes_by_mode > 0).sum())

    @classmethod
    def from_results(
        cls, results: Iterable[EpisodeResult], task: Task | None = None, *, decimals: int | None = DECIMALS
    ) -> "Episodes":
        """Make columns from episodes in any order; a task adds its modes.

        Scores are rounded to so many decimal places; None leaves them as they are. Success is known if any
        episode says something of it: some environments report it only when it happens.
        """
        ordered = sorted(results, key=lambda result: result.seed)
        common = [name for name in ordered[0].metrics if all(name in r.metrics for r in ordered)]
        reports_success = any(r.success is not None for r in ordered)
        modes = 0 if task is None else task.reporting.modes
        needed = tuple(r.steps_to_success for r in ordered)
        goes_on = any(k not in (None, r.steps) for k, r in zip(needed, ordered, strict=True))

        def shorten(values: Iterable[float]) -> tuple[float, ...]:
            return tuple(
                float(value) if decimals is None else round(float(value), decimals) for value in values
            )

        return cls(
            seed=tuple(r.seed for r in ordered),
            score=shorten(r.score for r in ordered),
            success=tuple(bool(r.success) for r in ordered) if reports_success else None,
            metrics={name: shorten(r.metrics[name] for r in ordered) for name in common},
            steps=tuple(int(r.steps) for r in ordered),
            modes=modes,
            mode=tuple(-1 if r.mode is None else r.mode for r in ordered) if modes else None,
            success_step=needed if goes_on else None,
        )


class Setting(NamedTuple):
    """What entries must share to be pooled in one row."""

    name: str
    chunk: int
    demos: int
    latency_steps: int = 0
    obs_noise: float = 0.0
    push: float = 0.0


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trained run, rolled out under one setting."""

    name: str
    """Unique name of the row, such as "diffusion, DDIM-10"."""
    title: str
    method: str
    train_seed: int
    demos: int
    """Number of demonstrations it was trained on."""
    chunk: int
    """Actions executed before replanning (T_a)."""
    sampling: Mapping[str, Any]
    """Sampling settings of the trained model."""
    condition: Condition
    parameters: int
    train_steps: int
    train_s: float | None
    """Training time in seconds, if the run had the device to itself."""
    calls_per_chunk: float
    """Sequential network calls for eight actions, the mean over plans."""
    episodes: Episodes
    select: Kind = "none"
    """Rule by which plans were selected."""
    frames: str = ""
    """Observations of all episodes for the player of a report page, see `encode_frames`."""

    @property
    def setting(self) -> Setting:
        """Setting by which entries are pooled."""
        return Setting(self.name, self.chunk, self.demos, **self.condition.to_dict())

    @property
    def label(self) -> str:
        """Name with the method's title, see `format_label`."""
        return format_label(self.name, self.method, self.title)


def format_label(name: str, method: str, title: str) -> str:
    """Return a name with the method's title: "diffusion, DDIM-10" becomes "Diffusion Policy, DDIM-10"."""
    if not name.startswith(method):
        return name
    detail = name.removeprefix(method)
    return title if title.endswith(detail) else title + detail
