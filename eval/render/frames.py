"""Frames of an episode: the scene, the futures that the policy expects, and a caption."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsde_policy.eval.episode import EpisodeResult
from nsde_policy.eval.render.forecast import sample_episode_forecasts
from nsde_policy.eval.render.pictures import add_caption, fit_picture
from nsde_policy.eval.rollout import Player
from nsde_policy.tasks.base import Task
from nsde_policy.tasks.drawing import Forecast

FALLBACK_RATE_HZ = 10.0
"""Control periods per second in videos of environments that do not say."""


@dataclass(frozen=True)
class RenderedEpisode:
    """A played episode that can be drawn."""

    task: Task
    result: EpisodeResult
    forecasts: list[Forecast]
    """By control period; the last frame has none, nor have pictures of a camera or the environment."""
    rate_hz: float
    """Control periods per second."""

    @classmethod
    def play(cls, player: Player, seed: int) -> "RenderedEpisode":
        """Play an episode exactly as evaluation does; forecasts are sampled afterwards, with other noise."""
        result = player.play(seed, frames=True)
        forecasts = [] if result.trace.frames else sample_episode_forecasts(player, result)
        return cls(player.task, result, forecasts, player.rate_hz or FALLBACK_RATE_HZ)

    def __len__(self) -> int:
        return len(self.result.trace.obs)

    def frames(self, size: int) -> Iterator[np.ndarray]:
        """Draw all frames with captions."""
        return (self.frame(step, size) for step in range(len(self)))

    def frame(self, step: int, size: int) -> np.ndarray:
        """Draw one frame with its caption, (size + caption, size, 3) uint8."""
        trace = self.result.trace
        if trace.frames:
            picture = fit_picture(trace.frames[step].decompress(), size)
        else:
            forecast = self.forecasts[step] if step < len(self.forecasts) else None
            picture = self.task.drawing.draw(trace.obs[step], size=size, forecast=forecast)
        return add_caption(
            picture,
            seed=self.result.seed,
            step=step,
            progress=trace.progress[step],
            threshold=self.task.drawing.success_progress,
            success=self.result.success if step == len(self) - 1 else None,
        )
