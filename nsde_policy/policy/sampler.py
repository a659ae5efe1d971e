"""Sample plans of a trained model for rows of states, and select one of several for each row."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nsde_policy.config import Sampling
from nsde_policy.interface.planner import Plan
from nsde_policy.methods.base import BatchRng
from nsde_policy.selection.rule import SUPPORT_NOISE, SelectionRule
from nsde_policy.selection.selector import PlanSelector
from nsde_policy.torch_threads import use_threads

from .graphs import NO_NOISE, Function, GraphCache
from .loading import LoadedModel


class PlanSampler:
    """A model and its plan selector on a device: as CUDA graphs on a GPU, with `threads` threads on a CPU."""

    def __init__(
        self, model: LoadedModel, selector: PlanSelector | None, *, obs_dim: int, horizon: int
    ) -> None:
        self.model, self.selector = model, selector
        self.device, self.threads = "cpu", 1
        self._obs_dim, self._horizon = obs_dim, horizon
        self._graphs: GraphCache | None = None

    def to(self, device: str) -> None:
        """Move model and selector to a device."""
        self.model.to(device)
        if self.selector is not None:
            self.selector.to(device)
        self.device = device
        self._graphs = GraphCache() if torch.device(device).type == "cuda" else None

    @property
    def rule(self) -> SelectionRule:
        """Rule by which plans are selected."""
        return SelectionRule() if self.selector is None else self.selector.rule

    @property
    def sampling(self) -> Sampling:
        """Settings with which plans are sampled; plans that are compared need enough noise to differ."""
        kind = self.rule.kind
        if kind == "goal":
            return self.model.learned_sampling()
        return self.model.widen_sampling(SUPPORT_NOISE) if kind == "support" else self.model.config.sampling

    def find_horizon(self, steps: int) -> int:
        """Return how many actions of each candidate are sampled and judged."""
        horizon = max(steps, self.rule.horizon(self._horizon))
        return min(horizon, self.model.config.longest_chunk or horizon)

    def sample(
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
            plan = partial(self._plan, steps=steps, sampling=sampling, count=count, with_std=with_std)
            key = self.rule, steps, sampling, count, with_std
            outputs = self.compute(key, plan, [inputs[rows]], rng.repeat(rows, count))
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

    def _plan(
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
            plan["std"] = std[..., self._obs_dim :]
        return plan

    def _sample(self, states: Tensor, rng: BatchRng, steps: int, sampling: Sampling) -> dict[str, Tensor]:
        """Sample one plan for each row of states: its actions, and its states if the method predicts them."""
        if not self.model.predicts_states:
            return {"actions": self.model.plan(states, steps=steps, rng=rng, sampling=sampling)}
        paths = self.model.sample_futures(states, steps=steps, rng=rng, sampling=sampling)
        return {"actions": paths[:, 1:, self._obs_dim :], "states": paths}

    def compute(
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
