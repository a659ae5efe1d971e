"""A plan as a module that can be traced: states and noise are its inputs, so that it is deterministic."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from nsde_policy.config import Sampling
from nsde_policy.errors import NsdePolicyError
from nsde_policy.interface.planner import PolicySpec
from nsde_policy.policy.graphs import BufferedNoise
from nsde_policy.policy.loading import LoadedModel
from nsde_policy.policy.policy import Policy
from nsde_policy.selection.selector import PlanSelector

from ..runtime.metadata import (
    ACTIONS,
    CANDIDATES,
    PATH,
    STD,
    GraphInput,
    GraphRecord,
    SelectionRecord,
)
from .onnx_writer import TracedFunction

MAX_TRACED_CALLS = 64
"""Largest number of sequential network calls in a graph; 100 steps of DDPM are too many."""
PLAN_TOLERANCE = 5e-5
"""Largest allowed difference, in ranges of the demonstrations; rounding adds up over the steps of a plan."""
STATE_MARGIN = 0.1
"""States are sampled from the demonstrated range, widened by this fraction on both sides."""
COST_MARGIN = 1e-3
"""Graph and policy are compared where the choice does not change if costs change by this fraction: they round
differently, and may choose differently between plans that are equally good."""
MAX_DRAWS = 100
"""Most inputs that are sampled for each comparison."""


class PlanModule(nn.Module):
    """The plans of a method as a function of its noise."""

    def __init__(self, model: LoadedModel, steps: int, sampling: Sampling, obs_dim: int) -> None:
        super().__init__()
        self.model, self.steps, self.sampling, self.obs_dim = model, steps, sampling, obs_dim

    @torch.no_grad()
    def forward(self, states: Tensor, *noise: Tensor) -> tuple[Tensor, ...]:
        """Plan actions (rows, steps, act_dim) from states (rows, history, d).

        Methods that predict states add these, (rows, steps + 1, d), and σ of each action.
        """
        rng = BufferedNoise(len(states), states.device, noise)
        if self.model.predicts_states:
            paths = self.model.sample_futures(states, steps=self.steps, rng=rng, sampling=self.sampling)
            std = self.model.futures_std(states, paths, sampling=self.sampling)
            return paths[:, 1:, self.obs_dim :], paths, std[..., self.obs_dim :]
        return (self.model.plan(states, steps=self.steps, rng=rng, sampling=self.sampling),)


class SinglePlan(nn.Module):
    """The plan of a module like `PlanModule` for one row: without the axis of rows."""

    def __init__(self, plans: nn.Module) -> None:
        super().__init__()
        self.plans = plans

    def forward(self, states: Tensor, *noise: Tensor) -> tuple[Tensor, ...]:
        """Plan from states (history, d) and noise."""
        return tuple(values[0] for values in self.plans(states[None], *(values[None] for values in noise)))

    def is_clear(self, states: Tensor, *noise: Tensor) -> bool:
        """Return whether rounding changes the plan a little only."""
        return True


class SelectedPlan(SinglePlan):
    """The plan that a selector chooses from the candidates of a module like `PlanModule`."""

    def __init__(self, plans: nn.Module, selector: PlanSelector, steps: int) -> None:
        super().__init__(plans)
        self.selector, self.steps = selector, steps

    @torch.no_grad()
    def forward(self, states: Tensor, *noise: Tensor) -> tuple[Tensor, ...]:
        """Plan from states (history, d) and the noise of all candidates, (candidates, ...).

        Return what `SinglePlan` does, and the states to which candidates lead, (candidates, steps + 1, d).
        """
        outputs, led_to, costs = self._compare(states, noise)
        best, lengths = self.selector.choose(costs), (self.steps, self.steps + 1, self.steps)
        selected = (values.index_select(0, best)[0, :n] for values, n in zip(outputs, lengths, strict=False))
        return *selected, led_to[:, : self.steps + 1]

    @torch.no_grad()
    def is_clear(self, states: Tensor, *noise: Tensor) -> bool:
        """Return whether the choice stays the same if its costs rise and all others fall a little."""
        *_, costs = self._compare(states, noise)
        best = self.selector.choose(costs)
        changed = costs * (1 - COST_MARGIN)
        changed[:, best] = costs[:, best] * (1 + COST_MARGIN)
        return torch.equal(self.selector.choose(changed), best)

    def _compare(self, states: Tensor, noise: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        rows = states.expand(len(noise[0]), -1, -1)
        outputs = self.plans(rows, *noise)
        return outputs, *self.selector.compare(rows, outputs[0], len(noise[0]))


def trace_plan(
    policy: Policy, steps: int, sampling: Sampling | None = None, *, selects: bool = False
) -> TracedFunction:
    """Prepare a plan of a policy, or the selected one, for a fixed number of actions for tracing."""
    model, spec, selector = policy.model.eval().requires_grad_(False), policy.spec, policy.selector
    settings, count = policy.sampling if sampling is None else sampling, policy.candidates if selects else 1
    horizon = policy.find_horizon(policy.check_steps(steps)) if selects else policy.check_steps(steps)
    calls = model.network_calls(horizon, settings)
    if calls > MAX_TRACED_CALLS:
        raise NsdePolicyError(
            f"{horizon} actions take {calls} network calls, a graph has at most {MAX_TRACED_CALLS}; "
            "use fewer --steps, or --sampling scheduler=ddim steps=10"
        )
    rng = BufferedNoise(1, policy.device)
    with torch.no_grad():  # plan once to find the noise that a plan samples
        model.plan(torch.zeros(1, spec.history, spec.dim), steps=horizon, rng=rng, sampling=settings)
    plain = PlanModule(model, horizon, settings, spec.obs_dim)
    folded = model.fold_for_export(settings) or plain
    reference, module = SinglePlan(plain), SinglePlan(folded)
    buffers = enumerate(rng.buffers)
    inputs = [GraphInput(f"{kind}_{i}", kind, tuple(noise.shape[1:])) for i, (kind, noise) in buffers]
    if selects:
        assert selector is not None
        selector.eval()
        reference, module = (SelectedPlan(plans, selector, steps) for plans in (plain, folded))
        inputs = [replace(each, shape=(count, *each.shape)) for each in inputs]
    scale = np.array(spec.high) - np.array(spec.low)
    return TracedFunction(
        record=GraphRecord(
            spec=replace(spec, longest_chunk=steps, chunk=min(policy.chunk, steps)),
            steps=steps,
            foresees=model.predicts_states,
            calibration=policy.calibration,
            inputs=(GraphInput("states", "states", (spec.history, spec.dim)), *inputs),
            selection=None if policy.candidates == 1 else _record_selection(selector),
            candidates=count,
        ),
        module=module.eval().requires_grad_(False),
        reference=reference,
        draw_inputs=partial(_draw_inputs, spec, inputs, reference.is_clear),
        scales={ACTIONS: scale[spec.obs_dim :], PATH: scale, STD: scale[spec.obs_dim :], CANDIDATES: scale},
        tolerance=PLAN_TOLERANCE,
    )


def _draw_inputs(
    spec: PolicySpec, noise: Sequence[GraphInput], is_clear: Callable[..., bool], cases: int
) -> Iterator[list[np.ndarray]]:
    """Draw plausible states with history, and noise, all float32, for which the plan is clear."""
    rng = np.random.default_rng(0)
    low, high, step = (np.array(values) for values in (spec.low, spec.high, spec.increment_std))
    for _ in range(MAX_DRAWS * cases):
        now = low + (high - low) * rng.uniform(-STATE_MARGIN, 1 + STATE_MARGIN, len(low))
        before = step * rng.standard_normal((spec.history - 1, len(low)))
        states = np.concatenate([now[None], now - before.cumsum(0)])
        samples = (
            rng.standard_normal(each.shape) if each.kind == "normal" else rng.random(each.shape)
            for each in noise
        )
        inputs = [np.asarray(values, np.float32) for values in (states, *samples)]
        if is_clear(*map(torch.from_numpy, inputs)):
            yield inputs
            cases -= 1
        if not cases:
            return
    raise NsdePolicyError(
        "the sampled plans of this policy lead to the same place, so there is nothing to select: use "
        "--sampling with more noise, or train with --select none"
    )


def _record_selection(selector: PlanSelector | None) -> SelectionRecord:
    assert selector is not None
    assert selector.rule.kind != "none"
    return SelectionRecord(
        selector.rule.kind,
        selector.rule.columns,
        goal=tuple(selector.goal.tolist()),
        whitening=tuple(map(tuple, selector.whitening.tolist())),
        angles=tuple(selector.is_angle.nonzero().flatten().tolist()),
    )
