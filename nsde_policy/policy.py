"""A trained run as a policy: observations in, actions out."""

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.checkpoint import RunDirectory, RunRecord
from nsde_policy.config import Sampling, SamplingConfig
from nsde_policy.errors import ConfigError
from nsde_policy.memory import Memory
from nsde_policy.models import AbstractPolicyModel, Draws, NeuralSDE
from nsde_policy.planner import Plan, PolicySpec
from nsde_policy.runs import load_model


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
        self._memory = self.spec.memory()
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

    @cached_property
    def spec(self) -> PolicySpec:
        """Its sizes."""
        config, layout = self.record.config, self.record.layout
        return PolicySpec(
            obs_dim=layout.obs_dim,
            act_dim=layout.act_dim,
            history=config.model.history,
            chunk=config.chunk,
            longest_chunk=config.model.longest_chunk or 0,
            first_action_from=config.demos.first_action_from,
            circular=layout.circular,
            low=layout.low,
            high=layout.high,
            increment_std=layout.increment_std,
            method=config.method,
        )

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
        self._memory = self.spec.memory()
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
        memory = self.spec.memory()
        memory.see(obs)
        return self.plan(memory, generator=generator or self._generator).actions

    def plan(
        self,
        memory: Memory,
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
        memories: Sequence[Memory],
        *,
        generators: Sequence[torch.Generator],
        chunk: int | None = None,
        sampling: Sampling | None = None,
    ) -> list[Plan]:
        """Plan for several episodes in one batch, each with a generator of its own."""
        steps = self.check_chunk(chunk or self.chunk)
        states = np.stack([memory.states() for memory in memories])
        return self._plans(states, Draws(generators, self._device), steps, sampling)

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan."""
        draws = Draws([torch.Generator().manual_seed(seed)], self._device)
        (plan,) = self._plans(states[None], draws, self.check_chunk(steps))
        return plan

    def _plans(
        self, given: np.ndarray, draws: Draws, steps: int, sampling: Sampling | None = None
    ) -> list[Plan]:
        states = torch.from_numpy(given).to(self._device, torch.float32)
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
        memory: Memory,
        *,
        n: int,
        steps: int,
        generator: torch.Generator,
        sampling: SamplingConfig | None = None,
    ) -> Tensor:
        """Sample n futures, (steps + 1, n, obs_dim + act_dim), the present state first."""
        x0 = torch.from_numpy(memory.states()).flatten().expand(n, -1)
        return self._sde.sample_paths(x0, steps=steps, generator=generator, sampling=sampling)

    def step_std(self, memory: Memory) -> np.ndarray:
        """How unsure the next state is: σ of each of its numbers in their own units, (obs_dim + act_dim,)."""
        std: np.ndarray = self._sde.step_std(torch.from_numpy(memory.states()).flatten()).double().numpy()
        return std

    @property
    def _sde(self) -> NeuralSDE:
        if not isinstance(self.model, NeuralSDE):
            method = self.record.config.method
            raise ConfigError(f"{method} plans actions; only a Neural SDE foresees states and their spread")
        return self.model
