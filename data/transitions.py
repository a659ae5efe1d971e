"""Demonstrations as pairs of successive states, what a neural SDE is trained on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from nsde_policy.data.angles import unwrap_angles
from nsde_policy.data.types import Demonstrations, Floats, Ints, read_only
from nsde_policy.errors import ConfigError, EpisodeError


@dataclass(frozen=True)
class CurrentAction:
    """x_t = (obs_t, act_t), the state of the paper."""


@dataclass(frozen=True)
class PreviousAction:
    """x_t = (obs_t, act_{t−1}): known in full when the policy is asked for act_t.

    Deviation: the paper's state holds the current action, which a policy does not know yet. With
    the previous one, the action part of the *next* state is the command to send now.
    """

    first: Literal["zeros", "repeat"] | tuple[int, ...]
    """What stands for the action before an episode's first: columns of its first observation (Push-T:
    (0, 1), the agent's own position), `zeros` (velocity commands), or `repeat` its first action."""


@dataclass(frozen=True, eq=False)
class Transitions:
    """States and their successors, one control period later."""

    x: Floats
    """The state, angles as recorded, (n, d)."""
    x_next: Floats
    """Its successor; angles continue those of `x`, so that x_next − x never holds a 2π jump, (n, d)."""
    past: Floats
    """The states before `x`, oldest first, their angles leading up to `x`; before an episode's
    beginning its first state is repeated, (n, history − 1, d)."""
    known: npt.NDArray[np.bool_]
    """Which numbers of `x_next` were recorded, (n, d): all, but for the observation after a final action."""
    episode: Ints
    """Which demonstration the pair is from, (n,)."""

    def __post_init__(self) -> None:
        n, d = self.x.shape
        wanted = {"x": (n, d), "x_next": (n, d), "past": (n, *self.past.shape[1:-1], d), "known": (n, d)}
        for name, shape in {**wanted, "episode": (n,)}.items():
            array = getattr(self, name)
            if array.shape != shape or (name == "past" and array.ndim != 3):
                raise EpisodeError(f"transitions of {n} states of {d} numbers: {name} is {array.shape}")
            object.__setattr__(self, name, read_only(array))

    def __len__(self) -> int:
        return len(self.x)


def transitions(
    demos: Demonstrations,
    *,
    action: CurrentAction | PreviousAction,
    history: int = 1,
    final_actions: bool = False,
) -> Transitions:
    """Pair every state with its successor; no pair, and no past, spans two episodes.

    Args:
        demos: the demonstrations; an episode of T frames gives T − 1 pairs.
        action: which action a state holds, the current or the previous one.
        history: how many states a model sees, the present one included.
        final_actions: add a pair for the last frame of each episode. What came after it was not
            recorded, but the last action was: often the one that finished the task.
    """
    if history < 1:
        raise ConfigError(f"history counts the present state, so it is at least 1, got {history}")
    if final_actions and isinstance(action, CurrentAction):
        raise ConfigError("final actions need states that hold the previous action, not the current one")
    states, angles = states_of(demos, action)
    now = np.arange(len(states))
    if not final_actions:
        now = np.delete(now, demos.episode_ends - 1)
    episode = np.searchsorted(demos.episode_ends, now, side="right")
    ago = np.arange(history - 1, -1, -1)
    seen = np.maximum(now[:, None] - ago, demos.starts[episode][:, None])
    following = np.minimum(now + 1, demos.episode_ends[episode] - 1)
    path = states[np.column_stack([seen, following])]
    known = np.ones(path[:, -1].shape, np.bool_)
    final = now == following
    known[final, : demos.obs.shape[1]] = False
    path[final, -1, demos.obs.shape[1] :] = demos.act[now[final]]
    path = unwrap_angles(path, angles, anchor=history - 1)
    return Transitions(
        x=path[:, -2].copy(),
        x_next=path[:, -1].copy(),
        past=path[:, :-2].copy(),
        known=known,
        episode=episode,
    )


def states_of(
    demos: Demonstrations, action: CurrentAction | PreviousAction
) -> tuple[Floats, tuple[int, ...]]:
    """Every frame's state, (frames, obs_dim + act_dim), and which of its columns are angles."""
    obs_dim = demos.obs.shape[1]
    angles = demos.angles + tuple(obs_dim + column for column in demos.act_angles)
    act = demos.act if isinstance(action, CurrentAction) else _previous_actions(demos, action)
    return np.concatenate([demos.obs, act], axis=1), angles


def _previous_actions(demos: Demonstrations, rule: PreviousAction) -> Floats:
    """The action commanded one frame earlier, by `rule` where an episode begins, (frames, act_dim)."""
    act_dim, obs_dim = demos.act.shape[1], demos.obs.shape[1]
    previous = np.roll(demos.act, 1, axis=0)
    if rule.first == "zeros":
        previous[demos.starts] = 0
    elif rule.first == "repeat":
        previous[demos.starts] = demos.act[demos.starts]
    elif len(rule.first) == act_dim and all(0 <= int(column) < obs_dim for column in rule.first):
        previous[demos.starts] = demos.obs[demos.starts][:, list(rule.first)]
    else:
        raise ConfigError(
            f"the first previous action must be 'zeros', 'repeat' or {act_dim} observation columns "
            f"from 0 to {obs_dim - 1}, got {rule.first!r}"
        )
    return previous
