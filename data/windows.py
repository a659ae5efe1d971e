"""Demonstrations as windows of observations and actions, what chunk-predicting policies are trained on."""

from dataclasses import dataclass

import numpy as np

from nsde_policy.data.angles import unwrap_angles
from nsde_policy.data.types import Demonstrations, Floats, Ints, read_only
from nsde_policy.errors import ConfigError, EpisodeError


@dataclass(frozen=True, eq=False)
class Windows:
    """What was seen lately, and what was commanded around now."""

    obs: Floats
    """The last observations, the present one last, (n, n_obs_steps, obs_dim)."""
    act: Floats
    """Actions from the oldest observation on, the present one at n_obs_steps − 1, (n, horizon, act_dim)."""
    episode: Ints
    """Which demonstration the window is from, (n,)."""

    def __post_init__(self) -> None:
        if (
            self.obs.ndim != 3
            or self.act.ndim != 3
            or not len(self.obs) == len(self.act) == len(self.episode)
        ):
            shapes = {name: getattr(self, name).shape for name in ("obs", "act", "episode")}
            raise EpisodeError(f"windows need obs (n, k, d), act (n, horizon, a), episode (n,), got {shapes}")
        for name in ("obs", "act", "episode"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.obs)


def windows(demos: Demonstrations, *, horizon: int, n_obs_steps: int, n_action_steps: int) -> Windows:
    """Cut every window that holds `n_action_steps` recorded actions from the present on.

    As in Diffusion Policy; with horizon 6, n_obs_steps 2, n_action_steps 3:

        frame        t-1  t   t+1  t+2  t+3  t+4
        observed      x   x
        predicted     x   x   x    x    x    x
        executed          x   x    x

    Windows that reach past either end of their episode repeat its first or last frame; none spans
    two episodes. Angles of observations lead up to the present one, those of actions start from it:
    no window holds a 2π jump.

    Deviation: an episode too short to hold `n_action_steps` actions gives one padded window;
    Diffusion Policy drops it without a word.
    """
    if min(horizon, n_obs_steps, n_action_steps) < 1 or n_obs_steps - 1 + n_action_steps > horizon:
        raise ConfigError(
            "need n_obs_steps - 1 + n_action_steps <= horizon, all at least 1, "
            f"got {n_obs_steps}, {n_action_steps}, {horizon}"
        )
    counts = np.maximum(demos.lengths - horizon + n_obs_steps + n_action_steps - 1, 1)
    episode = np.repeat(np.arange(len(demos)), counts)
    nth = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
    steps = (nth - (n_obs_steps - 1))[:, None] + np.arange(horizon)
    frames = demos.starts[episode][:, None] + np.clip(steps, 0, demos.lengths[episode][:, None] - 1)
    return Windows(
        obs=unwrap_angles(demos.obs[frames[:, :n_obs_steps]], demos.angles, anchor=-1),
        act=unwrap_angles(demos.act[frames], demos.act_angles, anchor=n_obs_steps - 1),
        episode=episode,
    )
