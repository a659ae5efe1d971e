"""Neural SDE policies: imitation learning with one small network call per action.

    from nsde_policy import Policy, Session, load_demonstrations, train

Importing this package is cheap: torch, gymnasium, zarr and pygame are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING

from .version import __version__ as __version__

if TYPE_CHECKING:
    from nsde_policy.control import Session as Session
    from nsde_policy.data import load_demonstrations as load_demonstrations
    from nsde_policy.data.readers import register_reader as register_reader
    from nsde_policy.encoders import register_encoder as register_encoder
    from nsde_policy.eval.rollouts.scores import RolloutScores as RolloutScores
    from nsde_policy.eval.rollouts.scores import rollout as rollout
    from nsde_policy.eval.score.result import Score as Score
    from nsde_policy.eval.score.scorer import score as score
    from nsde_policy.methods.registry import register_method as register_method
    from nsde_policy.policy.policy import Policy as Policy
    from nsde_policy.tasks import register_task as register_task
    from nsde_policy.training.train import train as train

_PUBLIC = {
    "RolloutScores": "eval.rollouts.scores",
    "rollout": "eval.rollouts.scores",
    "Score": "eval.score.result",
    "score": "eval.score.scorer",
    "Policy": "policy.policy",
    "Session": "control",
    "load_demonstrations": "data",
    "register_encoder": "encoders",
    "register_method": "methods.registry",
    "register_reader": "data.readers",
    "register_task": "tasks",
    "train": "training.train",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"nsde_policy.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
