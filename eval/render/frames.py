"""Episodes as pictures: the scene, the futures the policy sees in it, and how sure it is of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsde_policy.envs.pusht import drawing
from nsde_policy.envs.pusht.geometry import SUCCESS_COVERAGE
from nsde_policy.eval.render.forecast import Forecast, forecast_generator, forecasts
from nsde_policy.eval.render.pictures import Caption, Tile, captioned
from nsde_policy.eval.rollout import EpisodeResult, Player, Trace


@dataclass(frozen=True)
class Film:
    """An episode that has been played, and what the policy expected at each moment."""

    result: EpisodeResult
    trace: Trace
    ahead: list[Forecast]
    """By control period; the last frame has none, since the episode is over."""

    @classmethod
    def shoot(cls, player: Player, seed: int) -> "Film":
        """Play an episode as evaluation does; the futures are drawn afterwards, from noise of their own."""
        trace = Trace()
        result = player.play(seed, trace)
        generator = forecast_generator(seed)
        return cls(result, trace, forecasts(player.policy, trace, player.config, generator))

    def __len__(self) -> int:
        return len(self.trace.obs)

    def frames(self, size: int) -> Iterator[np.ndarray]:
        """Every moment with its caption."""
        return (self.frame(step, size) for step in range(len(self)))

    def frame(self, step: int, size: int) -> np.ndarray:
        """One moment with its caption; (size + caption, size, 3) uint8."""
        over = step == len(self) - 1
        caption = Caption(
            seed=self.result.seed,
            step=step,
            coverage=self.trace.coverage[step],
            threshold=SUCCESS_COVERAGE,
            outcome=self.result.success if over else None,
        )
        return captioned(self.scene(step, size), caption)

    def scene(self, step: int, size: int) -> np.ndarray:
        """One moment alone, (size, size, 3) uint8."""
        state = self.trace.obs[step].tolist()
        agent, block = state[:2], state[2:]
        if step >= len(self.ahead):
            return drawing.frame(agent, block, size=size)
        ahead = self.ahead[step]
        return drawing.frame(
            agent, block, size=size, paths=ahead.paths, regions=ahead.regions, ghosts=ahead.ghosts.tolist()
        )


def summary_tile(result: EpisodeResult, trace: Trace, size: int) -> Tile:
    """A whole episode in one picture: where the block began and ended, and the way the agent took."""
    obs = np.array(trace.obs)
    first, last = obs[0].tolist(), obs[-1].tolist()
    picture = drawing.frame(last[:2], last[2:], size=size, paths=obs[None, ::-1, :2], ghosts=[first[2:]])
    outcome = f"success, {result.steps} steps" if result.success else f"failure, {best_coverage(result)}"
    return Tile(picture, f"{result.seed}: {outcome}", good=result.success)


def best_coverage(result: EpisodeResult) -> str:
    """The best coverage of a failed episode, not rounded up: 0.949 is no 0.95."""
    return f"{math.floor(result.max_reward * SUCCESS_COVERAGE * 100) / 100:.2f}"
