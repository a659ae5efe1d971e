"""A trained run as a policy: takes observations, returns actions."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY, resolve_run
from nsde_policy.config import Sampling
from nsde_policy.data.frames import resize_frames
from nsde_policy.encoders.base_model import EncoderModel
from nsde_policy.errors import ConfigError
from nsde_policy.inference.base import BasePolicy, require_int, require_seed
from nsde_policy.inference.graphs import NO_DRAWS, Function, GraphCache
from nsde_policy.inference.loading import LoadedModel, build_policy_spec, load_encoder, load_model
from nsde_policy.inference.selection import load_selector
from nsde_policy.inference.torch_threads import use_threads
from nsde_policy.methods.base import Draws
from nsde_policy.planner.calibration import Calibration
from nsde_policy.planner.checks import check_plan
from nsde_policy.planner.interface import History, Plan
from nsde_policy.run_directory import RunDirectory, RunRecord
from nsde_policy.selection.rule import SUPPORT_NOISE, Choice, SelectionRule
from nsde_policy.selection.selector import PlanSelector

Returned = TypeVar("Returned")

CPU_ROWS, SMALL_NETWORK = 8, 2_000_000
"""Rows that a network of at most so many parameters plans at once on a CPU, in little more time than one."""


class Policy(BasePolicy[torch.Generator]):
    """A trained model that returns actions.

        policy = Policy.from_pretrained("runs/arm")          # without a path: the shipped policy
        with policy.session() as session:                    # commands within limits, at the recorded rate
            robot.send(session.step(robot.observe()))

    Without a session, `reset` starts an episode, `select_action` returns the action of each control period,
    and `predict_action_chunk` a whole plan. Random numbers come from torch generators. A plan on a CPU uses
    `threads` torch threads, one by default; the number of the calling thread is not changed.
    """

    def __init__(
        self,
        record: RunRecord,
        model: LoadedModel,
        calibration: Calibration | None = None,
        encoder: EncoderModel | None = None,
        selector: PlanSelector | None = None,
    ) -> None:
        super().__init__(build_policy_spec(record), calibration, seed=record.seed)
        self.record, self.model, self.encoder = record, model, encoder
        self.selector = selector
        self.chunk = record.config.chunk
        self.threads = 1
        """Torch threads of a plan on a CPU."""
        self.device = "cpu"
        """Where the model runs; `to` moves it."""
        self._graphs: GraphCache | None = None

    @classmethod
    def from_pretrained(cls, path: Path | str | None = None) -> Self:
        """Load a run directory, or a policy of the package: "shipped", the default, or "shipped-pixels"."""
        run = RunDirectory(SHIPPED_POLICY if path is None else resolve_run(Path(path)))
        record, model = load_model(run)
        calibration = Calibration.read(run.path, build_policy_spec(record))
        return cls(record, model, calibration, load_encoder(run, record), load_selector(run, record))

    def to(self, device: str) -> Self:
        """Move the model to a device; observations and actions stay numpy arrays."""
        self.model.to(device)
        for part in (self.encoder, self.selector):
            if part is not None:
                part.to(device)
        self.device = device
        self._graphs = GraphCache() if torch.device(device).type == "cuda" else None
        return self

    def use_selection(self, choice: Choice) -> Self:
        """Select plans by another rule than the one that training chose; `none` samples one plan.

        Raises:
            ConfigError: If the run was trained without plan selection, or its demonstrations have no goal.
        """
        if self.selector is not None:
            self.selector.rule = self.selector.trained_rule.choose(choice)
        elif choice in ("goal", "support"):
            raise ConfigError(
                f"this run has no dynamics model, so plans cannot be selected by {choice}: train it with "
                "--select auto"
            )
        return self

    @property
    def rule(self) -> SelectionRule:
        """Rule by which plans are selected."""
        return SelectionRule() if self.selector is None else self.selector.rule

    @property
    def candidates(self) -> int:
        """Most plans that are compared before one is executed; 1 without plan selection."""
        return self.rule.candidates

    @property
    def sampling(self) -> Sampling:
        """Settings with which plans are sampled; plans that are compared need enough noise to differ."""
        kind = self.rule.kind
        if kind == "goal":
            return self.model.learned_sampling()
        return self.model.widen_sampling(SUPPORT_NOISE) if kind == "support" else self.model.config.sampling

    def count_parameters(self) -> int:
        """Count the parameters of the model, and of the dynamics model if plans are selected."""
        used = [self.model, *([self.selector.dynamics] if self.selector and self.candidates > 1 else [])]
        return sum(parameter.numel() for network in used for parameter in network.parameters())

    def count_calls(self, plan: Plan, sampling: Sampling | None = None) -> int:
        """Count the sequential network calls that a plan took."""
        if plan.candidates is None:
            return self.model.network_calls(len(plan.actions), sampling)
        horizon = self.find_horizon(len(plan.actions))
        return self.model.network_calls(horizon, sampling) + horizon

    def find_horizon(self, steps: int) -> int:
        """Return how many actions of each candidate are sampled and judged."""
        assert self.selector is not None
        wanted = max(steps, self.selector.rule.horizon(self.record.config.horizon))
        return min(wanted, self.model.config.longest_chunk or wanted)

    def _encode_frames(
        self, values: np.ndarray, frames: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if (encoder := self.encoder) is None:
            return super()._encode_frames(values, frames)
        resized = [resize_frames(camera, encoder.size) for camera in frames]
        given = [torch.from_numpy(camera).to(self.device) for camera in resized]
        rows = torch.from_numpy(values).to(self.device, torch.float32)

        if encoder.measures_shift:  # waits for the GPU
            features, summary = self._run(lambda: encoder.summarize(rows, *given))
        else:
            features, summary = self._run(
                lambda: self._compute("encode", lambda seen, _: encoder.summarize(*seen), [rows, *given])
            )
        head, visible = encoder.visibility, None
        if head is not None:
            visible = np.asarray(self._run(lambda: head(summary)).double().cpu())
        return np.asarray(features.double().cpu()), visible

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
        candidates: int | None = None,
    ) -> list[Plan]:
        """Plan for several episodes in one batch; each has its own random generator.

        With plan selection, at most `candidates` plans are compared.
        """
        states = np.stack([history.states() for history in histories])
        count = self.check_steps(steps or self.chunk)
        draws = Draws(generators, self.device)
        return self._run(lambda: self._plan_states(states, draws, count, sampling, candidates))

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan.

        Methods that declare `reports_std` add the standard deviation of each action, at the cost of one
        network call. With plan selection, at most `candidates` plans are compared.

        Raises:
            PolicyInputError: If the states or the seed are invalid.
            PlanError: If the plan is not finite, as from states far outside the demonstrated range.
        """
        given, steps = self._check_states(states)[None], self.check_steps(steps)
        draws = Draws([self._make_generator(require_seed(seed))], self.device)
        (plan,) = self._run(lambda: self._plan_with_std(given, draws, steps, candidates))
        return check_plan(plan, self.spec)

    @property
    def largest_batch(self) -> int | None:
        """Most rows of `plan_rows` that are computed together; None for any number."""
        small = self.count_parameters() <= SMALL_NETWORK
        return None if self.device != "cpu" else CPU_ROWS if small else 1

    def plan_rows(
        self,
        states: Sequence[np.ndarray],
        *,
        steps: int,
        seeds: Sequence[int],
        candidates: int | None = None,
    ) -> list[Plan]:
        """Plan for several robots together, each from its states and seed; `check_plan` checks the plans.

        A plan equals that of `plan_from` up to rounding, which depends on the number of rows.
        """
        given, steps = np.stack(states), self.check_steps(steps)
        size = self.largest_batch or len(given)
        plans: list[Plan] = []
        for first in range(0, len(given), size):
            rows = slice(first, first + size)
            draws = Draws([self._make_generator(seed) for seed in seeds[rows]], self.device)
            plans += self._run(partial(self._plan_with_std, given[rows], draws, steps, candidates))
        return plans

    def encode_rows(self, rows: Sequence[Mapping[str, object]]) -> list[tuple[np.ndarray, float | None]]:
        """Encode observations of several robots in one batch, each as `encode_and_see` does."""
        batch = {name: np.stack([np.asarray(each[name]) for each in rows]) for name in rows[0]}
        encoded, visible = self._convert_and_see(batch, plausible=False)
        return [*zip(encoded, [None] * len(rows) if visible is None else visible.tolist(), strict=True)]

    def _plan_with_std(
        self, states: np.ndarray, draws: Draws, steps: int, candidates: int | None = None
    ) -> list[Plan]:
        plans = self._plan_states(states, draws, steps, candidates=candidates)
        paths = [plan.states for plan in plans if plan.states is not None]
        if not self.model.reports_std or not paths:
            return plans
        sampling = self.sampling
        given = [torch.from_numpy(x).to(self.device, torch.float32) for x in (states, np.stack(paths))]
        (std,) = self._compute(
            ("std", sampling), lambda seen, _: (self.model.futures_std(*seen, sampling=sampling),), given
        )
        found = std[..., self.obs_dim :].double().cpu().numpy()
        return [plan._replace(std=each) for plan, each in zip(plans, found, strict=True)]

    def _compute(
        self, name: Hashable, function: Function, tensors: Sequence[Tensor], draws: Draws = NO_DRAWS
    ) -> tuple[Tensor, ...]:
        """Call a function of tensors with independent rows, as a CUDA graph on a GPU."""
        if self._graphs is None:
            return function(tensors, draws)
        return self._graphs.call(name, function, tensors, draws)

    def _run(self, function: Callable[[], Returned]) -> Returned:
        """Call a function of the model with `threads` torch threads."""
        with use_threads(self.threads), torch.no_grad():
            return function()

    def _plan_states(
        self,
        given: np.ndarray,
        draws: Draws,
        steps: int,
        sampling: Sampling | None = None,
        candidates: int | None = None,
    ) -> list[Plan]:
        states = torch.from_numpy(given).to(self.device, torch.float32)
        sampling = self.sampling if sampling is None else sampling
        selector, most = self.selector, self.candidates
        most = most if candidates is None else max(1, min(candidates, most))
        sample = partial(self._sample, steps=steps, sampling=sampling)
        if selector is None or selector.rule.kind == "none" or most == 1:
            return _list_plans(*self._compute((steps, sampling), sample, [states], draws))
        compared = selector.compares(states).tolist()
        plans: dict[int, Plan] = {}
        for wanted, count in ((False, 1), (True, most)):
            rows = [row for row, compare in enumerate(compared) if compare is wanted]
            given_rows, numbers = [states[rows]], draws.repeat(rows, count)
            if rows and count == 1:
                found = _list_plans(*self._compute((steps, sampling), sample, given_rows, numbers))
                plans |= zip(rows, found, strict=True)
            elif rows:
                horizon = self.find_horizon(steps)
                select = partial(
                    self._select, selector, steps=steps, sampling=sampling, count=count, horizon=horizon
                )
                key = selector.rule, steps, sampling, count, horizon
                led_to, *chosen = self._compute(key, select, given_rows, numbers)
                pairs = zip(_list_plans(*chosen), led_to.double().cpu().numpy(), strict=True)
                plans |= zip(rows, (plan._replace(candidates=each) for plan, each in pairs), strict=True)
        return [plans[row] for row in range(len(states))]

    def _sample(
        self, tensors: Sequence[Tensor], draws: Draws, *, steps: int, sampling: Sampling | None
    ) -> tuple[Tensor, ...]:
        """Sample actions (rows, steps, act_dim), and the path (rows, steps + 1, d) if the method has it."""
        (states,) = tensors
        if not self.model.foresees_states:
            return (self.model.plan(states, steps=steps, draws=draws, sampling=sampling),)
        paths = self.model.sample_futures(states, steps=steps, draws=draws, sampling=sampling)
        return paths[:, 1:, self.obs_dim :], paths

    def _select(
        self,
        selector: PlanSelector,
        tensors: Sequence[Tensor],
        draws: Draws,
        *,
        steps: int,
        sampling: Sampling | None,
        count: int,
        horizon: int,
    ) -> tuple[Tensor, ...]:
        """Sample `count` plans of `horizon` actions for each row; return where they lead, and the best."""
        (states,) = tensors
        repeated = states.repeat_interleave(count, dim=0)
        actions, *paths = self._sample([repeated], draws, steps=horizon, sampling=sampling)
        led_to, costs = selector.compare(repeated, actions, count)
        chosen = selector.choose(costs) + count * torch.arange(len(states), device=states.device)
        led_to = led_to[:, : steps + 1].reshape(len(states), count, steps + 1, -1)
        return led_to, actions[chosen, :steps], *(path[chosen, : steps + 1] for path in paths)

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
        """Sample n futures, (steps + 1, n, obs_dim + act_dim), the present state first."""
        states = torch.from_numpy(history.states()).expand(n, -1, -1)
        draws = Draws([generator] * n)
        futures = self._run(
            lambda: self.model.sample_futures(states, steps=steps, draws=draws, sampling=sampling)
        )
        return futures.transpose(0, 1)

    def step_std(self, history: History) -> np.ndarray:
        """Return the standard deviation σ of each dimension of the next state, (obs_dim + act_dim,)."""
        states = torch.from_numpy(history.states())[None]
        std = self._run(lambda: self.model.futures_std(states, states[:, :1].expand(-1, 2, -1)))[0, 0]
        return np.asarray(std.double())


def _list_plans(actions: Tensor, paths: Tensor | None = None) -> list[Plan]:
    """Return one plan for each row of actions, and of paths if the method has them."""
    found = [None] * len(actions) if paths is None else paths.double().cpu().numpy()
    rows = zip(actions.double().cpu().numpy(), found, strict=True)
    return [Plan(actions=chunk, states=path) for chunk, path in rows]
