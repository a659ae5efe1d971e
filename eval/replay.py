"""Replay Push-T demonstrations open loop: the recorded actions, nothing else, from the recorded start.

The strictest test of an environment there is: contacts amplify every difference, so a demonstration
that comes out as it was recorded was recorded in the same world.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np

from nsde_policy.data import Demonstrations, Episode
from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.pusht.geometry import SUCCESS_COVERAGE
from nsde_policy.errors import DemoError

Start = Literal["state", "seed"]
"""Where a replay starts: at the recorded first state, or, for episode k, where benchmark seed k does.

The human demonstrations were recorded from seeds 0, 1, 2, …, but stored as float32; the seed gives
the first state in full."""


FAITHFUL = 0.01
"""Largest error, in pixels, of a replay that came out as it was recorded."""


@dataclass(frozen=True)
class Replay:
    """One demonstration, as it was recorded and as it came out."""

    episode: int
    states: np.ndarray
    """What the replay went through, (T, 5)."""
    position_error: float
    """Largest distance of agent or block from the recording along one axis, pixels."""
    angle_error: float
    """Largest difference of the block's angle, radians."""
    max_coverage: float
    """Largest covered share of the goal, the last recorded action included."""


@dataclass(frozen=True)
class ReplayReport:
    """All episodes of a store, replayed."""

    replays: list[Replay]

    def as_json(self) -> str:
        """The errors of every episode."""
        fields = ("episode", "position_error", "angle_error", "max_coverage")
        return json.dumps({"episodes": [{f: getattr(r, f) for f in fields} for r in self.replays]}, indent=2)

    def as_text(self) -> str:
        """For people: the typical episode and the worst ones."""
        errors = np.array([r.position_error for r in self.replays])
        worst = max(self.replays, key=lambda r: r.position_error)
        reached = sum(r.max_coverage > SUCCESS_COVERAGE for r in self.replays)
        return (
            f"{len(errors)} episodes replayed open loop, {reached} reach the goal (coverage above 0.95)\n"
            f"largest error  median {np.median(errors):.2g} px, worst {errors.max():.2g} px and "
            f"{worst.angle_error:.2g} rad (episode {worst.episode}); "
            f"{(errors < FAITHFUL).sum()} episodes stay within {FAITHFUL} px"
        )


def replay_pusht(demos: Demonstrations, *, start: Start = "state") -> Iterator[Replay]:
    """Replay every episode of a Push-T store with 5-D states and 2-D actions."""
    if (demos.obs.shape[1], demos.act.shape[1]) != (5, 2):
        raise DemoError(
            f"{demos.source} holds {demos.obs.shape[1]}-D observations and {demos.act.shape[1]}-D actions; "
            "a Push-T replay needs the 5-D state and the 2-D target"
        )
    env = gym.make(PUSHT_ID, max_episode_steps=-1)
    for k, episode in enumerate(demos):
        yield _replay(env, k, episode, start)


def _replay(env: gym.Env[np.ndarray, np.ndarray], k: int, episode: Episode, start: Start) -> Replay:
    if start == "seed":
        state, info = env.reset(seed=k)
    else:
        state, info = env.reset(options={"state": episode.obs[0]})
    states, covered = [state], [info["coverage"]]
    for action in episode.act:
        state, _, _, _, info = env.step(action)
        states.append(state)
        covered.append(info["coverage"])
    out = np.array(states[: len(episode)])
    off = np.abs(out - episode.obs)
    turn = np.minimum(off[:, 4], 2 * math.pi - off[:, 4])
    return Replay(
        episode=k,
        states=out,
        position_error=float(off[:, :4].max()),
        angle_error=float(turn.max()),
        max_coverage=max(covered),
    )


def picture_of(replays: Sequence[Replay], path: Path, *, columns: int = 6, rows: int = 3) -> None:
    """Write a sheet of replayed episodes: where each ended, and the way its agent took."""
    from nsde_policy.envs.pusht import drawing
    from nsde_policy.eval.render.pictures import Tile, contact_sheet, save_png

    count = min(columns * rows, len(replays))
    shown = [replays[i] for i in np.linspace(0, len(replays) - 1, count).round().astype(int)]
    tiles = [
        Tile(
            picture=drawing.frame(
                r.states[-1, :2], r.states[-1, 2:], size=256, paths=r.states[None, ::-1, :2]
            ),
            caption=f"{r.episode}: {len(r.states)} steps, coverage {r.max_coverage:.2f}",
            good=r.position_error < FAITHFUL,
        )
        for r in shown
    ]
    faithful = sum(r.position_error < FAITHFUL for r in replays)
    title = (
        f"{faithful} of {len(replays)} demonstrations replay open loop within {FAITHFUL} px; "
        f"{len(tiles)} at their last frame"
    )
    save_png(contact_sheet(tiles, columns=columns, title=title), path)
