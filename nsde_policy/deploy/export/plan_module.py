"""A plan as a module that can be traced: states and noise are its inputs, so that it is deterministic."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsde_policy.config import Sampling
from nsde_policy.deploy.runtime.metadata import GraphInput
from nsde_policy.errors import NsdePolicyError
from nsde_policy.inference.loading import LoadedModel
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.base import Draws

MAX_TRACED_CALLS = 64
"""Largest number of sequential network calls in a graph; 100 steps of DDPM are too many."""


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


class PlanTracer:
    """The plan of a policy for a fixed number of actions, ready to be traced."""

    def __init__(self, policy: Policy, steps: int, sampling: Sampling | None = None) -> None:
        model = policy.model.eval().requires_grad_(False)
        chosen = model.config.sampling if sampling is None else sampling
        calls = model.network_calls(policy.check_steps(steps), chosen)
        if calls > MAX_TRACED_CALLS:
            raise NsdePolicyError(
                f"{steps} actions take {calls} network calls, a graph has at most {MAX_TRACED_CALLS}; "
                "use fewer --steps, or --sampling scheduler=ddim steps=10"
            )
        self.steps = steps
        self.reference = PlanModule(model, steps, chosen, policy.spec.obs_dim)
        self.foresees = model.foresees_states
        self.spec = replace(policy.spec, longest_chunk=steps, chunk=min(policy.chunk, steps))
        draws, shape = RecordingDraws(), (policy.spec.history, policy.spec.obs_dim + policy.spec.act_dim)
        with torch.no_grad():  # plan once to find the noise that a plan draws
            model.plan(torch.zeros(1, *shape), steps=steps, draws=draws, sampling=chosen)
        self.inputs = (GraphInput("states", "states", shape), *draws.inputs)
        self.module: nn.Module = model.fold_for_export(chosen) or self.reference
        self.module.eval().requires_grad_(False)

    def build_example(self) -> tuple[Tensor, ...]:
        """Return example inputs in the middle of the demonstrated range."""
        spec = self.spec
        middle = 0.5 * (torch.tensor(spec.low) + torch.tensor(spec.high))
        noise = (torch.full(given.shape, 0.5) for given in self.inputs[1:])
        return middle.expand(spec.history, -1).clone(), *noise
