"""A trained run as a policy: observations in, actions out."""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.calibration import Calibration
from nsde_policy.checkpoint import RunDirectory, RunRecord
from nsde_policy.config import Sampling, SamplingConfig
from nsde_policy.errors import ConfigError
from nsde_policy.memory import Memory
from nsde_policy.models import AbstractPolicyModel, Draws, NeuralSDE
from nsde_policy.observation import as_observation, as_observations, check_plausible
from nsde_policy.planner import Plan, PolicySpec
from nsde_policy.runs import load_model, spec_of
from nsde_policy.session import Session
from nsde_policy.session.config import SessionConfig
from nsde_policy.session.faults import OnFault
from nsde_policy.session.limits import Limits

Observed = np.ndarray | Tensor | Sequence[float] | Mapping[str, Any]
"""An observation as a robot may give it: see `observation.py`."""


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

    def __init__(
        self, record: RunRecord, model: AbstractPolicyModel[Any], calibration: Calibration | None = None
    ) -> None:
        self.record, self.model = record, model
        self.calibration = calibration or Calibration.of_spec(self.spec)
        """What a control loop takes from the demonstrations."""
        self.chunk = record.config.chunk
        self._device = "cpu"
        self._queue: deque[np.ndarray] = deque()
        self._memory = self.spec.memory()
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

    @cached_property
    def spec(self) -> PolicySpec:
        """Its sizes."""
        return spec_of(self.record)

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

    def session(
        self,
        rate_hz: float = 10.0,
        deadline_s: float = 0.05,
        limits: Literal["from_demos"] | Limits = "from_demos",
        on_fault: OnFault = "hold",
        **settings: Any,
    ) -> Session:
        """A control loop with this policy; `settings` are the other fields of `SessionConfig`.

        with policy.session(rate_hz=10, deadline_s=0.05) as session:
            for obs, t in robot:
                robot.send(session.step(obs, t))
        """
        config = SessionConfig(rate_hz, deadline_s, limits, on_fault, **settings)
        return Session(self, config, calibration=self.calibration)

    def select_action(self, obs: Observed) -> np.ndarray:
        """The action for this control period, (act_dim,), after one observation (`observation.py`).

        An observation that cannot be right, against the demonstrations, is refused with `PolicyInputError`.
        """
        self._memory.see(check_plausible(as_observation(obs, self.spec), self.spec))
        if not self._queue:
            self._queue.extend(self.plan(self._memory, generator=self._generator).actions)
        action = self._queue.popleft()
        self._memory.did(action)
        return action

    def predict_action_chunk(self, obs: Observed, *, generator: torch.Generator | None = None) -> np.ndarray:
        """Plan from observations alone, as at the start of an episode: (chunk, act_dim) for one observation,
        (B, chunk, act_dim) for a batch (B, obs_dim), each row with noise of its own."""
        given = as_observations(obs, self.spec)
        memories = []
        for row in np.atleast_2d(given):
            memories.append(self.spec.memory())
            memories[-1].see(check_plausible(row, self.spec))
        generators = [generator or self._generator] * len(memories)
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
        draws = Draws([torch.Generator().manual_seed(seed)], self._device)
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
