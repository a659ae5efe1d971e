"""A trained run as a policy: observations in, actions out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nsde_policy.inference.base import ActingPolicy, checked_generator, whole, whole_seed
from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.inference.calibration import Calibration
from nsde_policy.run_directory import RunDirectory, RunRecord
from nsde_policy.config import Sampling, SamplingConfig
from nsde_policy.errors import ConfigError
from nsde_policy.inference.history import Memory
from nsde_policy.methods.base import AbstractPolicyModel, Draws
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.inference.observation import as_observations
from nsde_policy.inference.spec import Plan
from nsde_policy.training.run import load_model, spec_of

Observed = np.ndarray | Tensor | Sequence[float] | Mapping[str, Any]
"""An observation as a robot may give it: see `observation.py`."""


class NSDEPolicy(ActingPolicy):
    """A trained method, asked for actions.

        policy = NSDEPolicy.from_pretrained("runs/pusht")
        policy.reset()
        action = policy.select_action(obs)        # once per control period

    `ActingPolicy` says how it goes on from plan to plan; noise comes from torch's generators.
    """

    def __init__(
        self, record: RunRecord, model: AbstractPolicyModel[Any], calibration: Calibration | None = None
    ) -> None:
        super().__init__(spec_of(record), calibration)
        self.record, self.model = record, model
        self.chunk = record.config.chunk
        self._device = "cpu"
        self._generator = torch.Generator().manual_seed(record.seed)

    @classmethod
    def from_pretrained(cls, path: Path | str | None = None) -> Self:
        """Load a run directory, strictly; without one, the policy shipped in the package."""
        run = RunDirectory(SHIPPED_POLICY if path is None else Path(path))
        record, model = load_model(run)
        return cls(record, model, Calibration.read(run.path, spec_of(record)))

    def to(self, device: str) -> Self:
        """Plan on another device; observations and actions stay numpy arrays."""
        self.model.to(device)
        self._device = device
        return self

    def _seed(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(whole_seed(seed))

    def _next_actions(self, memory: Memory) -> np.ndarray:
        return self.plan(memory, generator=self._generator).actions

    def predict_action_chunk(self, obs: Observed, *, generator: torch.Generator | None = None) -> np.ndarray:
        """Plan from observations alone, as at the start of an episode: (chunk, act_dim) for one observation,
        (B, chunk, act_dim) for a batch (B, obs_dim), each row with noise of its own."""
        given = as_observations(obs, self.spec)
        memories = self._first_looks(given)
        noise = self._generator if generator is None else checked_generator(generator, torch.Generator)
        generators = [noise] * len(memories)
        chunks = np.stack([plan.actions for plan in self.plans(memories, generators=generators)])
        return chunks if given.ndim == 2 else chunks[0]

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
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan.

        A Neural SDE also says how unsure its commands are, for one network call more.
        """
        states = self._checked_states(states)
        draws = Draws([torch.Generator().manual_seed(whole_seed(seed))], self._device)
        (plan,) = self._plans(states[None], draws, self.check_chunk(steps))
        if not isinstance(self.model, NeuralSDE) or plan.states is None:
            return plan
        past, path = (
            torch.from_numpy(x[None]).to(self._device, torch.float32) for x in (states, plan.states)
        )
        std = self.model.futures_std(past, path)[0, :, self.obs_dim :]
        return plan._replace(std=std.double().cpu().numpy())

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
        longest, chunk = self.model.config.longest_chunk, whole(chunk, "steps")
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
