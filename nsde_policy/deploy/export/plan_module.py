"""A plan as a module that can be traced: states and noise are its inputs, so that it is deterministic."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from nsde_policy.config import Sampling
from nsde_policy.deploy.export.traced import TracedFunction
from nsde_policy.deploy.runtime.metadata import ACTIONS, PATH, STD, GraphInput, GraphRecord
from nsde_policy.errors import NsdePolicyError
from nsde_policy.inference.loading import LoadedModel
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.base import Draws

MAX_TRACED_CALLS = 64
"""Largest number of sequential network calls in a graph; 100 steps of DDPM are too many."""
PLAN_TOLERANCE = 1e-5
"""Largest allowed difference, in ranges of the demonstrations."""
STATE_MARGIN = 0.1
"""States are drawn from the demonstrated range, widened by this fraction on both sides."""


class FixedDraws(Draws):
    """Draws for one row that return given tensors in order."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__([torch.Generator()])
        self._tensors = iter(given)

    def normal(self, *shape: int) -> Tensor:
        """Return the next tensor, (1, *shape)."""
        return next(self._tensors)[None]

    uniform = normal


class RecordingDraws(Draws):
    """Draws for one row that record the shape of each tensor."""

    def __init__(self) -> None:
        super().__init__([torch.Generator().manual_seed(0)])
        self.inputs: list[GraphInput] = []

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers, (1, *shape)."""
        self.inputs.append(GraphInput(f"normal_{len(self.inputs)}", "normal", shape))
        return super().normal(*shape)

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers in [0, 1), (1, *shape)."""
        self.inputs.append(GraphInput(f"uniform_{len(self.inputs)}", "uniform", shape))
        return super().uniform(*shape)


class PlanModule(nn.Module):
    """The plan of a method for one row and given noise."""

    def __init__(self, model: LoadedModel, steps: int, sampling: Sampling, obs_dim: int) -> None:
        super().__init__()
        self.model, self.steps, self.sampling, self.obs_dim = model, steps, sampling, obs_dim

    @torch.no_grad()
    def forward(self, states: Tensor, *noise: Tensor) -> tuple[Tensor, ...]:
        """Plan from states (history, d).

        Returns:
            Actions (steps, act_dim); from methods that predict states also these, (steps + 1, d), and σ of
            each action, (steps, act_dim).
        """
        draws = FixedDraws(noise)
        if self.model.foresees_states:
            (path,) = self.model.sample_futures(
                states[None], steps=self.steps, draws=draws, sampling=self.sampling
            )
            (std,) = self.model.futures_std(states[None], path[None], sampling=self.sampling)
            return path[1:, self.obs_dim :], path, std[:, self.obs_dim :]
        return (self.model.plan(states[None], steps=self.steps, draws=draws, sampling=self.sampling)[0],)


def trace_plan(policy: Policy, steps: int, sampling: Sampling | None = None) -> TracedFunction:
    """Prepare the plan of a policy for a fixed number of actions for tracing."""
    model, spec = policy.model.eval().requires_grad_(False), policy.spec
    chosen = model.config.sampling if sampling is None else sampling
    calls = model.network_calls(policy.check_steps(steps), chosen)
    if calls > MAX_TRACED_CALLS:
        raise NsdePolicyError(
            f"{steps} actions take {calls} network calls, a graph has at most {MAX_TRACED_CALLS}; "
            "use fewer --steps, or --sampling scheduler=ddim steps=10"
        )
    draws = RecordingDraws()
    with torch.no_grad():  # plan once to find the noise that a plan draws
        model.plan(torch.zeros(1, spec.history, spec.dim), steps=steps, draws=draws, sampling=chosen)
    reference = PlanModule(model, steps, chosen, spec.obs_dim)
    module = model.fold_for_export(chosen) or reference
    low, high, step = (np.array(values) for values in (spec.low, spec.high, spec.increment_std))

    def draw_inputs(cases: int) -> Iterator[list[np.ndarray]]:
        """Draw plausible states with history, and noise, all float32."""
        rng = np.random.default_rng(0)
        for _ in range(cases):
            now = low + (high - low) * rng.uniform(-STATE_MARGIN, 1 + STATE_MARGIN, len(low))
            before = step * rng.standard_normal((spec.history - 1, len(low)))
            states = np.concatenate([now[None], now - before.cumsum(0)])
            noise = (
                rng.standard_normal(given.shape) if given.kind == "normal" else rng.random(given.shape)
                for given in draws.inputs
            )
            yield [np.asarray(values, np.float32) for values in (states, *noise)]

    scale = high - low
    return TracedFunction(
        record=GraphRecord(
            spec=replace(spec, longest_chunk=steps, chunk=min(policy.chunk, steps)),
            steps=steps,
            foresees=model.foresees_states,
            calibration=policy.calibration,
            inputs=(GraphInput("states", "states", (spec.history, spec.dim)), *draws.inputs),
        ),
        module=module.eval().requires_grad_(False),
        reference=reference,
        draw_inputs=draw_inputs,
        scales={ACTIONS: scale[spec.obs_dim :], PATH: scale, STD: scale[spec.obs_dim :]},
        tolerance=PLAN_TOLERANCE,
    )
