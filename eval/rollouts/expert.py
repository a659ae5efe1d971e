"""Scripted experts: a class of the user that demonstrates in an environment, rolled out like a policy."""

import inspect
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from nsde_policy.errors import ConfigError
from nsde_policy.tasks import Task
from nsde_policy.tasks.adapter import EnvAdapter
from nsde_policy.tasks.environments import import_named

from .episode import EpisodeLog, EpisodeResult
from .runner import RolloutConfig

ACTING = ("select_action", "get_action", "__call__")
"""Methods that give an action, the first that an expert has is used."""


class ExpertRunner:
    """A scripted expert, `module:Class`, and an environment in which it runs one episode after the other.

    The class is called with the environment if its constructor has a required positional argument or one
    named `env`, else without arguments; a function is used as it is. Actions come from `select_action(obs)`,
    `get_action(obs)` or a call, with the environment's own observation; with the task's usual one if the
    environment gives more of it only to record it. `reset()` is called before each episode if there is one,
    with `seed=` if it takes that.
    """

    def __init__(self, name: str, config: RolloutConfig) -> None:
        assert isinstance(config.env, Task)
        self.task, self._images = config.env, config.images
        self.env = EnvAdapter.open(self.task, config.env_kwargs)
        self._name = name
        recorded = [choice.recorded_with for choice in self.task.training.observations.values()]
        self._sees_usual = any(each and each.items() <= self.task.env_kwargs.items() for each in recorded)
        expert = import_named(name, "expert")
        if expert is None:
            raise ConfigError(f"the module of the expert {name} has no such class (--policy module:Class)")
        if isinstance(expert, type):
            with self._guard("constructor"):
                expert = expert(self.env.env) if _wants_env(expert) else expert()
        method = next((method for method in ACTING if callable(getattr(expert, method, None))), None)
        if method is None:
            raise ConfigError(
                f"expert {name} gives no actions; define select_action(obs), get_action(obs) or __call__(obs)"
            )
        self._method = method
        self._act = getattr(expert, method)
        self._reset = getattr(expert, "reset", None)

    def run(self, seeds: Sequence[int]) -> list[EpisodeResult]:
        """Run one episode per seed."""
        return [self._run(seed) for seed in seeds]

    def _run(self, seed: int) -> EpisodeResult:
        log = EpisodeLog(self.task, self.env, self._images)
        obs = log.reset(seed)
        self._prepare(seed)
        while not log.ended:
            started = time.perf_counter()
            action = self._choose_action(obs if self._sees_usual else self.env.last_obs)
            log.add_plan(time.perf_counter() - started, planned=1)
            obs = log.step(action)
        return log.score()

    def _prepare(self, seed: int) -> None:
        """Prepare the expert for the episode of a seed."""
        if self._reset is not None:
            with self._guard("reset"):
                parameters = inspect.signature(self._reset).parameters.values()
                takes_seed = any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in parameters)
                self._reset(**({"seed": seed} if takes_seed else {}))

    def _choose_action(self, obs: object) -> np.ndarray:
        """Return the action for an observation, (act_dim,), inside the action space."""
        shape = self.env.env.action_space.shape
        with self._guard(self._method):
            action = np.asarray(self._act(obs), np.float64)
            if action.shape != shape or not np.isfinite(action).all():
                raise ValueError(f"it returned {action!r:.80}, expected finite numbers of shape {shape}")
        return self.env.clip(action.reshape(-1))

    def _guard(self, what: str) -> AbstractContextManager[None]:
        return self.env.guard(f"expert {self._name}: {what}", " (--policy)")


def _wants_env(expert: type) -> bool:
    """Return whether a constructor has a required positional argument, or one named `env`."""
    return any(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and (each.default is each.empty or each.name == "env")
        for each in inspect.signature(expert).parameters.values()
    )
