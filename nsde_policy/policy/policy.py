"""A trained run as a policy: takes observations, returns actions."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY, resolve_run
from nsde_policy.config import Sampling
from nsde_policy.data.frames import resize_frames
from nsde_policy.encoders.encoder_model import EncoderModel
from nsde_policy.errors import ConfigError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import History, Plan, check_plan
from nsde_policy.methods.base import BatchRng
from nsde_policy.run_directory import RunDirectory, RunRecord
from nsde_policy.selection.rule import SUPPORT_NOISE, Choice, SelectionRule
from nsde_policy.selection.selector import PlanSelector
from nsde_policy.torch_threads import use_threads

from .base_policy import BasePolicy, require_int, require_seed
from .graphs import NO_NOISE, Function, GraphCache
from .loading import LoadedModel, build_policy_spec, load_encoder, load_model
from .selection import load_selector

CPU_ROWS, SMALL_NETWORK = 8, 2_000_000
"""Batch size on a CPU, and the largest network, in parameters, for which such a batch costs little more than
one row."""


class Policy(BasePolicy):
    """A trained model that returns actions.

        policy = Policy.from_pretrained("runs/arm")          # without a path: the shipped policy
        with policy.session() as session:                    # commands within limits, at the recorded rate
            robot.send(session.step(robot.observe()))

    Without a session, `reset` starts an episode, and `select_action` returns the action of each policy
    period. Random numbers come from torch generators. A plan on a CPU uses `threads` torch threads, one by
    default; the number of the calling thread is not changed.

    There is one planning method for each caller: sessions call `plan_from`, the server `plan_rows`, rollouts
    `plan_batch`; `plan` is `plan_batch` of one episode.
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
        self.record, self.model, self.encoder, self.selector = record, model, encoder, selector
        self.chunk = record.config.chunk
        self.device = "cpu"
        """Where the model runs; `to` moves it."""
        self.threads = 1
        """Torch threads of a plan on a CPU."""
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
        for module in (self.model, self.selector, self.encoder):
            if module is not None:
                module.to(device)
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
        return self._plan_states(
            np.stack([history.states() for history in histories]),
            BatchRng(generators, self.device),
            steps=self.check_steps(steps or self.chunk),
            sampling=sampling,
            candidates=candidates,
        )

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan.

        Methods that declare `reports_std` add the standard deviation of each action, at the cost of one
        network call. With plan selection, at most `candidates` plans are compared.

        Raises:
            PolicyInputError: If the states or the seed are invalid.
            PlanError: If the plan is not finite, as from states far outside the demonstrated range.
        """
        rows, seeds = [self._check_states(states)], [require_seed(seed)]
        (plan,) = self.plan_rows(rows, steps=steps, seeds=seeds, candidates=candidates)
        return check_plan(plan, self.spec)

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
        rows, steps = np.stack(states), self.check_steps(steps)
        size = self.largest_batch or len(rows)
        plans: list[Plan] = []
        for first in range(0, len(rows), size):
            batch = slice(first, first + size)
            rng = BatchRng([torch.Generator().manual_seed(seed) for seed in seeds[batch]], self.device)
            plans += self._plan_states(rows[batch], rng, steps=steps, candidates=candidates, with_std=True)
        return plans

    def encode_frames(
        self, values: np.ndarray, frames: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode frames of all cameras, as `Planner.encode_frames` says."""
        if (encoder := self.encoder) is None:
            return super().encode_frames(values, frames)
        resized = [torch.from_numpy(resize_frames(camera, encoder.size)) for camera in frames]
        inputs = [torch.from_numpy(values).to(torch.float32), *resized]

        def encode(tensors: Sequence[Tensor], _: BatchRng) -> dict[str, Tensor]:
            features, summary = encoder.summarize(*tensors)
            if encoder.visibility is None:
                return {"features": features}
            return {"features": features, "visible": encoder.visibility(summary)}

        outputs = self._compute("encode", encode, [tensor.to(self.device) for tensor in inputs])
        arrays = {name: output.double().cpu().numpy() for name, output in outputs.items()}
        return arrays["features"], arrays.get("visible")

    @property
    def largest_batch(self) -> int | None:
        """Most rows of `plan_rows` that are computed together; None for any number."""
        small = self.count_parameters() <= SMALL_NETWORK
        return None if self.device != "cpu" else CPU_ROWS if small else 1

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

    def find_horizon(self, steps: int) -> int:
        """Return how many actions of each candidate are sampled and judged."""
        horizon = max(steps, self.rule.horizon(self.record.config.horizon))
        return min(horizon, self.model.config.longest_chunk or horizon)

    def check_steps(self, steps: int) -> int:
        """Return `steps`, or raise `ConfigError` if one plan cannot hold that many actions."""
        longest, steps = self.model.config.longest_chunk, require_int(steps, "steps")
        if steps < 1 or (longest is not None and steps > longest):
            allowed = "at least 1" if longest is None else f"from 1 to {longest}"
            raise ConfigError(f"a plan of this policy can hold {allowed} actions, got steps {steps}")
        return steps

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

    def _seed(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def _plan_chunk(self) -> np.ndarray:
        return check_plan(self.plan(self._history, generator=self._generator), self.spec).actions

    def _plan_states(
        self,
        states: np.ndarray,
        rng: BatchRng,
        *,
        steps: int,
        sampling: Sampling | None = None,
        candidates: int | None = None,
        with_std: bool = False,
    ) -> list[Plan]:
        """Plan for each row of states (rows, history, d); at most `candidates` plans of a row are compared.

        With `with_std`, methods that report the standard deviation of each action add it, at the cost of one
        network call.
        """
        inputs = torch.from_numpy(states).to(self.device, torch.float32)
        sampling = self.sampling if sampling is None else sampling
        with_std = with_std and self.model.reports_std and self.model.predicts_states
        counts = self._count_candidates(inputs, candidates)
        plans: dict[int, Plan] = {}
        for count in sorted({*counts}):
            rows = [row for row, number in enumerate(counts) if number == count]
            plan = partial(self._plan_tensors, steps=steps, sampling=sampling, count=count, with_std=with_std)
            key = self.rule, steps, sampling, count, with_std
            outputs = self._compute(key, plan, [inputs[rows]], rng.repeat(rows, count))
            arrays = {name: output.double().cpu().numpy() for name, output in outputs.items()}
            for i, row in enumerate(rows):
                plans[row] = Plan(**{name: values[i] for name, values in arrays.items()})
        return [plans[row] for row in range(len(inputs))]

    def _count_candidates(self, states: Tensor, most: int | None) -> list[int]:
        """Return how many plans, at most `most`, are compared for each row of states."""
        allowed = self.rule.candidates if most is None else max(1, min(most, self.rule.candidates))
        if self.selector is None or allowed == 1:
            return [1] * len(states)
        with self._computing():
            return [allowed if compares else 1 for compares in self.selector.compares(states).tolist()]

    def _plan_tensors(
        self,
        tensors: Sequence[Tensor],
        rng: BatchRng,
        *,
        steps: int,
        sampling: Sampling,
        count: int,
        with_std: bool,
    ) -> dict[str, Tensor]:
        """Return the best of `count` plans for each row of states, by the fields of `Plan`."""
        (states,) = tensors
        if count == 1:
            plan = self._sample(states, rng, steps, sampling)
        else:
            assert self.selector is not None
            repeated = states.repeat_interleave(count, dim=0)
            plans = self._sample(repeated, rng, self.find_horizon(steps), sampling)
            led_to, costs = self.selector.compare(repeated, plans["actions"], count)
            best = self.selector.choose(costs) + count * torch.arange(len(states), device=states.device)
            plan = {"actions": plans["actions"][best, :steps]}
            if "states" in plans:
                plan["states"] = plans["states"][best, : steps + 1]
            plan["candidates"] = led_to[:, : steps + 1].reshape(len(states), count, steps + 1, -1)
        if with_std:
            std = self.model.futures_std(states, plan["states"], sampling=sampling)
            plan["std"] = std[..., self.spec.obs_dim :]
        return plan

    def _sample(self, states: Tensor, rng: BatchRng, steps: int, sampling: Sampling) -> dict[str, Tensor]:
        """Sample one plan for each row of states: its actions, and its states if the method predicts them."""
        if not self.model.predicts_states:
            return {"actions": self.model.plan(states, steps=steps, rng=rng, sampling=sampling)}
        paths = self.model.sample_futures(states, steps=steps, rng=rng, sampling=sampling)
        return {"actions": paths[:, 1:, self.spec.obs_dim :], "states": paths}

    def _compute(
        self, name: Hashable, function: Function, tensors: Sequence[Tensor], rng: BatchRng = NO_NOISE
    ) -> dict[str, Tensor]:
        """Call a function of tensors with independent rows; `name` stands for it and its settings."""
        with self._computing():
            if self._graphs is None:
                return function(tensors, rng)
            return self._graphs.call(name, function, tensors, rng)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with use_threads(self.threads), torch.no_grad():
            yield
