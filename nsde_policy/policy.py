"""A trained run as a policy: observations in, actions out."""

import copy
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.checkpoint import RunDirectory, RunRecord
from nsde_policy.config import Sampling, SamplingConfig
from nsde_policy.errors import ConfigError, PolicyInputError
from nsde_policy.models import AbstractPolicyModel, Draws, NeuralSDE
from nsde_policy.runs import load_model


class Plan(NamedTuple):
    """What a policy means to do, and what it expects to come of it."""

    actions: np.ndarray
    """Commands for the next control periods, (chunk, act_dim)."""
    states: np.ndarray | None = None
    """The states it expects to pass, the present one first, (chunk + 1, obs_dim + act_dim); None for methods
    that foresee actions alone."""


class NSDEPolicy:
    """A trained method, asked for actions.

        policy = NSDEPolicy.from_pretrained("runs/pusht")
        policy.reset()
        action = policy.select_action(obs)        # once per control period

    It plans `chunk` actions at once, and plans again when they are used up:

        period      0 1 2 3 4 5 6 7 | 8 9 …
        observed    x x x x x x x x | x
        planned     x x x x x x x x   x x x x x x x x
        executed    x x x x x x x x | x x …
    """

    def __init__(self, record: RunRecord, model: AbstractPolicyModel[Any]) -> None:
        self.record, self.model = record, model
        self.chunk = record.config.chunk
        self._device = "cpu"
        self._queue: deque[np.ndarray] = deque()
        self._memory = Memory(self)
        self._generator = torch.Generator().manual_seed(record.seed)

    @classmethod
    def from_pretrained(cls, path: Path | str | None = None) -> Self:
        """Load a run directory, strictly; without one, the policy shipped in the package."""
        return cls(*load_model(RunDirectory(SHIPPED_POLICY if path is None else Path(path))))

    def to(self, device: str) -> Self:
        """Plan on another device; observations and actions stay numpy arrays."""
        self.model.to(device)
        self._device = device
        return self

    @property
    def obs_dim(self) -> int:
        """Numbers in an observation."""
        return self.record.layout.obs_dim

    @property
    def act_dim(self) -> int:
        """Numbers in an action."""
        return self.record.layout.act_dim

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the episode: call it whenever the world jumps. A seed makes what follows repeat itself."""
        self._queue.clear()
        self._memory = Memory(self)
        if seed is not None:
            self._generator = torch.Generator().manual_seed(seed)

    def select_action(self, obs: np.ndarray) -> np.ndarray:
        """The action for this control period, (act_dim,)."""
        self._memory.see(obs)
        if not self._queue:
            self._queue.extend(self.plan(self._memory, generator=self._generator).actions)
        action = self._queue.popleft()
        self._memory.did(action)
        return action

    def predict_action_chunk(
        self, obs: np.ndarray, *, generator: torch.Generator | None = None
    ) -> np.ndarray:
        """Plan from one observation alone, as at the start of an episode, (chunk, act_dim)."""
        memory = Memory(self)
        memory.see(obs)
        return self.plan(memory, generator=generator or self._generator).actions

    def plan(
        self,
        memory: "Memory",
        *,
        generator: torch.Generator,
        chunk: int | None = None,
        sampling: Sampling | None = None,
    ) -> Plan:
        """Plan from what has been seen and done; a Neural SDE samples one future."""
        (plan,) = self.plans([memory], generators=[generator], chunk=chunk, sampling=sampling)
        return plan

    def plans(
        self,
        memories: Sequence["Memory"],
        *,
        generators: Sequence[torch.Generator],
        chunk: int | None = None,
        sampling: Sampling | None = None,
    ) -> list[Plan]:
        """Plan for several episodes in one batch, each with a generator of its own."""
        steps = self.check_chunk(chunk or self.chunk)
        states = torch.cat([memory.states() for memory in memories]).to(self._device)
        draws = Draws(generators, self._device)
        if isinstance(self.model, NeuralSDE):
            futures = self.model.futures(states, steps=steps, draws=draws, sampling=sampling)
            paths = futures.double().cpu().numpy()
            return [Plan(actions=path[1:, self.obs_dim :], states=path) for path in paths]
        actions = self.model.plan(states, steps=steps, draws=draws, sampling=sampling)
        return [Plan(actions=chunk) for chunk in actions.double().cpu().numpy()]

    def check_chunk(self, chunk: int) -> int:
        """`chunk` itself, where one plan can hold so many actions."""
        longest = self.model.config.longest_chunk
        if chunk < 1 or (longest is not None and chunk > longest):
            held = "at least 1" if longest is None else f"from 1 to {longest}"
            raise ConfigError(f"a plan of this policy holds {held} actions, {chunk} were asked for")
        return chunk

    def sample(
        self,
        memory: "Memory",
        *,
        n: int,
        steps: int,
        generator: torch.Generator,
        sampling: SamplingConfig | None = None,
    ) -> Tensor:
        """Sample n futures, (steps + 1, n, obs_dim + act_dim), the present state first."""
        x0 = memory.states().flatten(-2).expand(n, -1)
        return self._sde.sample_paths(x0, steps=steps, generator=generator, sampling=sampling)

    def step_std(self, memory: "Memory") -> np.ndarray:
        """How unsure the next state is: σ of each of its numbers in their own units, (obs_dim + act_dim,)."""
        std: np.ndarray = self._sde.step_std(memory.states().flatten(-2))[0].double().numpy()
        return std

    @property
    def _sde(self) -> NeuralSDE:
        if not isinstance(self.model, NeuralSDE):
            method = self.record.config.method
            raise ConfigError(f"{method} plans actions; only a Neural SDE foresees states and their spread")
        return self.model


class Memory:
    """What one episode's policy remembers: the last observations, and the actions before them."""

    def __init__(self, policy: NSDEPolicy) -> None:
        self._first_action_from = policy.record.config.demos.first_action_from
        self._obs_dim, self._act_dim = policy.obs_dim, policy.act_dim
        self._last_action: np.ndarray | None = None
        self._states: deque[np.ndarray] = deque(maxlen=policy.model.config.history)

    def copy(self) -> "Memory":
        """The same memory, which later events do not change."""
        twin = copy.copy(self)
        twin._states = self._states.copy()
        return twin

    def see(self, obs: np.ndarray | Sequence[float]) -> None:
        """Take in the observation of a new control period, (obs_dim,)."""
        now = _finite(obs, self._obs_dim, "an observation")
        if self._last_action is None:
            columns = list(self._first_action_from)
            self._last_action = now[columns] if columns else np.zeros(self._act_dim)
        self._states.appendleft(np.concatenate([now, self._last_action]))

    @property
    def in_force(self) -> np.ndarray:
        """The command in force: the last action, or what stands for it before the first."""
        if self._last_action is None:
            raise PolicyInputError("nothing has been observed yet: show the policy an observation first")
        return self._last_action

    def did(self, action: np.ndarray | Sequence[float]) -> None:
        """Note the action that was sent, which may differ from the one that was planned, (act_dim,)."""
        self._last_action = _finite(action, self._act_dim, "an action")

    def states(self) -> Tensor:
        """States newest first, the oldest repeated where there are too few, (1, history, d)."""
        if not self._states:
            raise PolicyInputError("nothing has been observed yet: show the policy an observation first")
        known = list(self._states)
        known += [known[-1]] * ((self._states.maxlen or 1) - len(known))
        return torch.from_numpy(np.stack(known).astype(np.float32))[None]


def _finite(values: np.ndarray | Sequence[float], size: int, what: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (size,):
        raise PolicyInputError(f"{what} of this policy has shape ({size},), got {array.shape}")
    if not np.isfinite(array).all():
        raise PolicyInputError(f"{what} must be finite, got {array.tolist()}")
    return array
