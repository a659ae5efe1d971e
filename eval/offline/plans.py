"""Plans of a policy over recorded episodes, to be drawn over the recording."""

from typing import NamedTuple

import numpy as np

from nsde_policy.eval.offline.frames import ScoredEpisodes
from nsde_policy.eval.offline.images import add_features
from nsde_policy.inference.policy import Policy
from nsde_policy.training.dataset import build_transitions

MOST_PLANS = 100
"""Most plans of one episode, from frames that are spread evenly."""


class RecordedPlans(NamedTuple):
    """Plans from frames of one episode."""

    stride: int
    """Frames from one plan to the next."""
    actions: list[np.ndarray]
    """Actions of each plan, (steps, act_dim)."""
    std: list[np.ndarray]
    """σ of each action, accumulated along the plan; empty if the method does not report it."""


def plan_recorded(policy: Policy, scored: ScoredEpisodes, episode: int) -> RecordedPlans:
    """Plan a chunk from recorded frames of an episode; each plan has the same seed."""
    chosen = scored.select([episode])
    demos = chosen.demos
    if chosen.cameras:
        demos = add_features(demos, chosen.cameras, chosen.first_frames, policy)
    history = policy.spec.history
    pairs = build_transitions(demos, policy.record.config.demos, history=history, final_action_weight=1.0)
    states = pairs.x.numpy().reshape(len(pairs.x), history, -1)
    stride, steps = -(-len(states) // MOST_PLANS), policy.spec.chunk
    plans = [policy.plan_from(each, steps=steps, seed=0) for each in states[::stride]]
    std = [np.sqrt(np.square(plan.std).cumsum(0)) for plan in plans if plan.std is not None]
    return RecordedPlans(stride, [plan.actions for plan in plans], std)
