"""Frames of an episode: the scene, the futures that the policy expects, and a caption."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsde_policy.eval.render.forecast import sample_episode_forecasts
from nsde_policy.eval.render.pictures import Tile, add_caption
from nsde_policy.eval.rollout import EpisodeResult, Player
from nsde_policy.tasks.base import Forecast, Task


@dataclass(frozen=True)
class RenderedEpisode:
    """A played episode that can be drawn."""

    task: Task
    result: EpisodeResult
    forecasts: list[Forecast]
    """By control period; the last frame has none."""

    @classmethod
    def play(cls, player: Player, seed: int) -> "RenderedEpisode":
        """Play an episode exactly as evaluation does; forecasts are sampled afterwards, with other noise."""
        result = player.play(seed)
        return cls(player.task, result, sample_episode_forecasts(player, result))

    def __len__(self) -> int:
        return len(self.result.trace.obs)

    def frames(self, size: int) -> Iterator[np.ndarray]:
        """Draw all frames with captions."""
        return (self.frame(step, size) for step in range(len(self)))

    def frame(self, step: int, size: int) -> np.ndarray:
        """Draw one frame with its caption, (size + caption, size, 3) uint8."""
        trace = self.result.trace
        forecast = self.forecasts[step] if step < len(self.forecasts) else None
        return add_caption(
            self.task.draw(trace.obs[step], size=size, forecast=forecast),
            seed=self.result.seed,
            step=step,
            progress=trace.progress[step],
            threshold=self.task.success_progress,
            success=self.result.success if step == len(self) - 1 else None,
        )


def draw_summary(task: Task, result: EpisodeResult, size: int) -> Tile:
    """Draw a whole episode as one tile: its last observation with the trail of earlier ones."""
    obs = np.array(result.trace.obs)
    best = "" if result.max_progress is None else f", {format_progress(result.max_progress)}"
    outcome = f"success, {result.steps} steps" if result.success else f"failure{best}"
    return Tile(task.draw(obs[-1], size=size, past=obs), f"{result.seed}: {outcome}", good=result.success)


def format_progress(progress: float) -> str:
    """Format a progress with two digits, rounded down so that 0.949 does not read as 0.95."""
    return f"{math.floor(progress * 100) / 100:.2f}"
