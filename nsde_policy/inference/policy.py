"""A trained run as a policy: observations in, actions out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.config import Sampling
from nsde_policy.errors import ConfigError
from nsde_policy.inference.base import BasePolicy, checked_generator, require_int, require_seed
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.history import History
from nsde_policy.inference.loading import build_policy_spec, load_model
from nsde_policy.inference.observation import as_observations
from nsde_policy.inference.spec import Plan
from nsde_policy.methods.base import Draws, PolicyModel
from nsde_policy.run_directory import RunDirectory, RunRecord

Observed = np.ndarray | Tensor | Sequence[float] | Mapping[str, Any]
"""An observation as a robot may give it: see `observation.py`."""


class Policy(BasePolicy):
    """A trained method, asked for actions.

        policy = Policy.from_pretrained("runs/pusht")
        policy.reset()
        action = policy.select_action(obs)        # once per control period

    `BasePolicy` says how it goes on from plan to plan; noise comes from torch's generators.
    """

    def __init__(
        self, record: RunRecord, model: PolicyModel[Any], calibration: Calibration | None = None
    ) -> None:
        super().__init__(build_policy_spec(record), calibration)
        self.record, self.model = record, model
        self.chunk = record.config.chunk
        self._device = "cpu"
        self._generator = torch.Generator().manual_seed(record.seed)

    @classmethod
    def from_pretrained(cls, path: Path | str | None = None) -> Self:
        """Load a run directory, strictly; without one, the policy shipped in the package."""
        run = RunDirectory(SHIPPED_POLICY if path is None else Path(path))
        record, model = load_model(run)
        return cls(record, model, Calibration.read(run.path, build_policy_spec(record)))

    def to(self, device: str) -> Self:
        """Plan on another device; observations and actions stay numpy arrays."""
        self.model.to(device)
        self._device = device
        return self

    def _seed(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(require_seed(seed))

    def _next_actions(self, memory: History) -> np.ndarray:
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
        memory: History,
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
        memories: Sequence[History],
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
        draws = Draws([torch.Generator().manual_seed(require_seed(seed))], self._device)
        (plan,) = self._plans(states[None], draws, self.check_chunk(steps))
        if not self.model.reports_std or plan.states is None:
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
        if self.model.foresees_states:
            futures = self.model.sample_futures(states, steps=steps, draws=draws, sampling=sampling)
            paths = futures.double().cpu().numpy()
            return [Plan(actions=path[1:, self.obs_dim :], states=path) for path in paths]
        actions = self.model.plan(states, steps=steps, draws=draws, sampling=sampling)
        return [Plan(actions=chunk) for chunk in actions.double().cpu().numpy()]

    def check_chunk(self, chunk: int) -> int:
        """`chunk` itself, where one plan can hold so many actions."""
        longest, chunk = self.model.config.longest_chunk, require_int(chunk, "steps")
        if chunk < 1 or (longest is not None and chunk > longest):
            held = "at least 1" if longest is None else f"from 1 to {longest}"
            raise ConfigError(f"a plan of this policy holds {held} actions, {chunk} were asked for")
        return chunk

    def sample(
        self,
        memory: History,
        *,
        n: int,
        steps: int,
        generator: torch.Generator,
        sampling: Sampling | None = None,
    ) -> Tensor:
        """Sample n futures, (steps + 1, n, obs_dim + act_dim), the present state first.

        Raises:
            ConfigError: If the method does not predict states.
        """
        states = torch.from_numpy(memory.states()).expand(n, -1, -1)
        draws = Draws([generator] * n)
        return self.model.sample_futures(states, steps=steps, draws=draws, sampling=sampling).transpose(0, 1)

    def step_std(self, memory: History) -> np.ndarray:
        """Return σ of each number of the next state, in its own unit, (obs_dim + act_dim,).

        Raises:
            ConfigError: If the method does not report a standard deviation.
        """
        states = torch.from_numpy(memory.states())[None]
        std = self.model.futures_std(states, states[:, :1].expand(-1, 2, -1))[0, 0]
        return np.asarray(std.double())
