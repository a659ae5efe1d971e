"""Demonstrations from episodes."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from nsde_policy.data import Demonstrations, Episode


def join_episodes(episodes: Iterable[Episode], **fields: Any) -> Demonstrations:
    """Concatenate episodes; `fields` are others of `Demonstrations`, such as `angles`."""
    episodes = list(episodes)
    obs, act = (np.concatenate([getattr(e, name) for e in episodes]) for name in ("obs", "act"))
    return Demonstrations(obs, act, np.cumsum([len(e) for e in episodes]), **fields)
