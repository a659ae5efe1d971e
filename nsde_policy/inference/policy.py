"""A trained run as a policy: takes observations, returns actions."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.config import Sampling
from nsde_policy.data.frames import resize_frames
from nsde_policy.encoders.base_model import EncoderModel
from nsde_policy.errors import ConfigError
from nsde_policy.inference.base import BasePolicy, require_int, require_seed
from nsde_policy.inference.loading import LoadedModel, build_policy_spec, load_encoder, load_model
from nsde_policy.inference.torch_threads import use_threads
from nsde_policy.methods.base import Draws
from nsde_policy.planner.calibration import Calibration
from nsde_policy.planner.checks import check_plan
from nsde_policy.planner.history import History
from nsde_policy.planner.interface import Plan
from nsde_policy.run_directory import RunDirectory, RunRecord

Returned = TypeVar("Returned")


class Policy(BasePolicy[torch.Generator]):
    """A trained model that returns actions.

        policy = Policy.from_pretrained("runs/pusht")
        policy.reset()
        action = policy.select_action(obs)        # once per control period

    `BasePolicy` documents when it plans again; random numbers come from torch generators. A plan on a CPU
    uses `threads` torch threads, one by default; the number of the calling thread is not changed.
    """

    def __init__(
        self,
        record: RunRecord,
        model: LoadedModel,
        calibration: Calibration | None = None,
        encoder: EncoderModel | None = None,
    ) -> None:
        super().__init__(build_policy_spec(record), calibration, seed=record.seed)
        self.record, self.model, self.encoder = record, model, encoder
        self.chunk = record.config.chunk
        self.threads = 1
        """Torch threads of a plan on a CPU."""
        self._device = "cpu"

    @classmethod
    def from_pretrained(cls, path: Path | str | None = None) -> Self:
        """Load a run directory; without a path, the policy shipped with the package."""
        run = RunDirectory(SHIPPED_POLICY if path is None else Path(path))
        record, model = load_model(run)
        calibration = Calibration.read(run.path, build_policy_spec(record))
        return cls(record, model, calibration, load_encoder(run, record))

    def to(self, device: str) -> Self:
        """Move the model to a device; observations and actions stay numpy arrays."""
        self.model.to(device)
        if self.encoder is not None:
            self.encoder.to(device)
        self._device = device
        return self

    def _encode_frames(self, values: np.ndarray, frames: list[np.ndarray]) -> np.ndarray:
        if (encoder := self.encoder) is None:
            return super()._encode_frames(values, frames)
        resized = [resize_frames(camera, encoder.size) for camera in frames]
        given = [torch.from_numpy(camera).to(self._device) for camera in resized]
        rows = torch.from_numpy(values).to(self._device, torch.float32)
        features = self._run(lambda: encoder(rows, *given))
        return np.asarray(features.double().cpu())

    def _make_generator(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def _draw_chunks(self, histories: Sequence[History], generator: torch.Generator) -> list[np.ndarray]:
        plans = self.plan_batch(histories, generators=[generator] * len(histories))
        return [check_plan(plan, self.spec).actions for plan in plans]

    def plan(
        self,
        history: History,
        *,
        generator: torch.Generator,
        steps: int | None = None,
        sampling: Sampling | None = None,
    ) -> Plan:
        """Plan from the history of one episode; a Neural SDE samples one future."""
        (plan,) = self.plan_batch([history], generators=[generator], steps=steps, sampling=sampling)
        return plan

    def plan_batch(
        self,
        histories: Sequence[History],
        *,
        generators: Sequence[torch.Generator],
        steps: int | None = None,
        sampling: Sampling | None = None,
    ) -> list[Plan]:
        """Plan for several episodes in one batch; each has its own random generator."""
        states = np.stack([history.states() for history in histories])
        count = self.check_steps(steps or self.chunk)
        draws = Draws(generators, self._device)
        return self._run(lambda: self._plan_states(states, draws, count, sampling))

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan.

        Methods that declare `reports_std` add the standard deviation of each action, at the cost of one
        network call.

        Raises:
            PolicyInputError: If the states or the seed are invalid.
            PlanError: If the plan is not finite, as from states far outside the demonstrated range.
        """
        states, steps = self._check_states(states), self.check_steps(steps)
        draws = Draws([self._make_generator(require_seed(seed))], self._device)
        return check_plan(self._run(lambda: self._plan_with_std(states, draws, steps)), self.spec)

    def _plan_with_std(self, states: np.ndarray, draws: Draws, steps: int) -> Plan:
        (plan,) = self._plan_states(states[None], draws, steps)
        if not self.model.reports_std or plan.states is None:
            return plan
        past, path = (
            torch.from_numpy(x[None]).to(self._device, torch.float32) for x in (states, plan.states)
        )
        std = self.model.futures_std(past, path)[0, :, self.obs_dim :]
        return plan._replace(std=std.double().cpu().numpy())

    def _run(self, function: Callable[[], Returned]) -> Returned:
        """Call a function of the model with `threads` torch threads."""
        with nullcontext() if self._device != "cpu" else use_threads(self.threads), torch.no_grad():
            return function()

    def _plan_states(
        self, given: np.ndarray, draws: Draws, steps: int, sampling: Sampling | None = None
    ) -> list[Plan]:
        states = torch.from_numpy(given).to(self._device, torch.float32)
        if self.model.foresees_states:
            futures = self.model.sample_futures(states, steps=steps, draws=draws, sampling=sampling)
            paths = futures.double().cpu().numpy()
            return [Plan(actions=path[1:, self.obs_dim :], states=path) for path in paths]
        actions = self.model.plan(states, steps=steps, draws=draws, sampling=sampling)
        return [Plan(actions=chunk) for chunk in actions.double().cpu().numpy()]

    def check_steps(self, steps: int) -> int:
        """Return `steps`, or raise `ConfigError` if one plan cannot hold that many actions."""
        longest, steps = self.model.config.longest_chunk, require_int(steps, "steps")
        if steps < 1 or (longest is not None and steps > longest):
            allowed = "at least 1" if longest is None else f"from 1 to {longest}"
            raise ConfigError(f"a plan of this policy can hold {allowed} actions, got steps {steps}")
        return steps

    def sample(
        self,
        history: History,
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
        states = torch.from_numpy(history.states()).expand(n, -1, -1)
        draws = Draws([generator] * n)
        futures = self._run(
            lambda: self.model.sample_futures(states, steps=steps, draws=draws, sampling=sampling)
        )
        return futures.transpose(0, 1)

    def step_std(self, history: History) -> np.ndarray:
        """Return the standard deviation σ of each dimension of the next state, (obs_dim + act_dim,).

        Raises:
            ConfigError: If the method does not report a standard deviation.
        """
        states = torch.from_numpy(history.states())[None]
        std = self._run(lambda: self.model.futures_std(states, states[:, :1].expand(-1, 2, -1)))[0, 0]
        return np.asarray(std.double())
