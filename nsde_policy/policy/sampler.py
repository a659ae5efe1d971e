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

from .graphs import NO_NOISE, Function, GraphCache
from .loading import LoadedModel
from .torch_threads import use_threads


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
        with_std = with_std and self.model.reports_std and self.model.foresees_states
        most = self.rule.candidates
        most = most if candidates is None else max(1, min(candidates, most))
        counts = [1] * len(inputs)
        if self.selector is not None and most > 1:
            with self._computing():
                counts = [most if compares else 1 for compares in self.selector.compares(inputs).tolist()]
        fields = ["actions", *["states"] * self.model.foresees_states, *["std"] * with_std]
        plans: list[Plan | None] = [None] * len(inputs)
        for count in sorted({*counts}):
            rows = [row for row, number in enumerate(counts) if number == count]
            plan = partial(self._plan, steps=steps, sampling=sampling, count=count, with_std=with_std)
            key = self.rule, steps, sampling, count, with_std
            outputs = self.compute(key, plan, [inputs[rows]], rng.repeat(rows, count))
            arrays = (output.double().cpu().numpy() for output in outputs)
            names = fields if count == 1 else [*fields, "candidates"]
            for row, *values in zip(rows, *arrays, strict=True):
                plans[row] = Plan(**dict(zip(names, values, strict=True)))
        return [plan for plan in plans if plan is not None]

    def _plan(
        self,
        tensors: Sequence[Tensor],
        rng: BatchRng,
        *,
        steps: int,
        sampling: Sampling,
        count: int,
        with_std: bool,
    ) -> tuple[Tensor, ...]:
        """Return actions (rows, steps, act_dim) of the best of `count` plans for each row of states.

        Methods that foresee states add the path (rows, steps + 1, d) and, with `with_std`, the standard
        deviation of each action. Where several plans are compared, the states to which they lead follow.
        """
        (states,) = tensors
        if count == 1:
            actions, *paths = self._sample(states, rng, steps, sampling)
            ends: tuple[Tensor, ...] = ()
        else:
            repeated = states.repeat_interleave(count, dim=0)
            actions, *paths = self._sample(repeated, rng, self.find_horizon(steps), sampling)
            assert self.selector is not None
            led_to, costs = self.selector.compare(repeated, actions, count)
            best = self.selector.choose(costs) + count * torch.arange(len(states), device=states.device)
            actions, paths = actions[best, :steps], [path[best, : steps + 1] for path in paths]
            ends = (led_to[:, : steps + 1].reshape(len(states), count, steps + 1, -1),)
        if not with_std:
            return actions, *paths, *ends
        std = self.model.futures_std(states, paths[0], sampling=sampling)[..., self._obs_dim :]
        return actions, *paths, std, *ends

    def _sample(self, states: Tensor, rng: BatchRng, steps: int, sampling: Sampling) -> tuple[Tensor, ...]:
        """Sample actions, and the path if the method has it."""
        if not self.model.foresees_states:
            return (self.model.plan(states, steps=steps, rng=rng, sampling=sampling),)
        paths = self.model.sample_futures(states, steps=steps, rng=rng, sampling=sampling)
        return paths[:, 1:, self._obs_dim :], paths

    def compute(
        self, name: Hashable, function: Function, tensors: Sequence[Tensor], rng: BatchRng = NO_NOISE
    ) -> tuple[Tensor, ...]:
        """Call a function of tensors with independent rows; `name` stands for it and its settings."""
        with self._computing():
            if self._graphs is None:
                return function(tensors, rng)
            return self._graphs.call(name, function, tensors, rng)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with use_threads(self.threads), torch.no_grad():
            yield
