"""A plan as a module: states and noise are inputs, so that a graph holds no randomness of its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsde_policy.config import Sampling
from nsde_policy.deploy.runtime.metadata import GraphInput
from nsde_policy.errors import ExportError
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.spec import PolicySpec
from nsde_policy.methods.base import Draws, PolicyModel

MOST_CALLS = 64
"""Most network calls that are written out one after the other; a DDPM chain of 100 is refused."""


class GivenDraws(Draws):
    """Hands out tensors that were given, for one row, instead of drawing them."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__([torch.Generator()])
        self._given = iter(given)

    def normal(self, *shape: int) -> Tensor:
        """The next one, (1, *shape)."""
        return next(self._given)[None]

    def uniform(self, *shape: int) -> Tensor:
        """The next one, (1, *shape)."""
        return next(self._given)[None]


class NotedDraws(Draws):
    """Draws for one row, and notes what was asked for."""

    def __init__(self) -> None:
        super().__init__([torch.Generator().manual_seed(0)])
        self.noted: list[GraphInput] = []

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, (1, *shape)."""
        self.noted.append(GraphInput(f"normal_{len(self.noted)}", "normal", shape))
        return super().normal(*shape)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), (1, *shape)."""
        self.noted.append(GraphInput(f"uniform_{len(self.noted)}", "uniform", shape))
        return super().uniform(*shape)


class Planned(nn.Module):
    """A method's own `plan`, or what a Neural SDE foresees, for one row and given noise."""

    def __init__(self, model: PolicyModel[Any], steps: int, sampling: Sampling) -> None:
        super().__init__()
        self.model, self.steps, self.sampling = model, steps, sampling

    @torch.no_grad()
    def forward(self, states: Tensor, *noise: Tensor) -> tuple[Tensor, ...]:
        """States (history, d) and noise → actions (steps, act_dim); foreseen also states (steps + 1, d) and
        σ of each action (steps, act_dim).
        """
        draws = GivenDraws(noise)
        if self.model.foresees_states:
            (path,) = self.model.sample_futures(
                states[None], steps=self.steps, draws=draws, sampling=self.sampling
            )
            (std,) = self.model.futures_std(states[None], path[None], sampling=self.sampling)
            commands = self.model.layout.spec.obs_dim
            return path[1:, commands:], path, std[:, commands:]
        return (self.model.plan(states[None], steps=self.steps, draws=draws, sampling=self.sampling)[0],)


class Chunk:
    """The plan of a policy for a fixed number of actions, ready to be traced."""

    def __init__(self, policy: Policy, steps: int, sampling: Sampling | None = None) -> None:
        model = policy.model.eval().requires_grad_(False)
        chosen = model.config.sampling if sampling is None else sampling
        calls = model.network_calls(policy.check_chunk(steps), chosen)
        if calls > MOST_CALLS:
            raise ExportError(
                f"{steps} actions take {calls} network calls, which a graph would hold one after the other; "
                f"at most {MOST_CALLS} are written out: fewer --steps, or --sampling scheduler=ddim steps=10"
            )
        self.steps = steps
        self.reference = Planned(model, steps, chosen)
        self.foresees = model.foresees_states
        self.inputs = self._inputs(policy.spec)
        self.spec = replace(policy.spec, longest_chunk=steps, chunk=min(policy.chunk, steps))
        self.fast: nn.Module = model.fold_for_export(chosen) or self.reference
        self.fast.eval().requires_grad_(False)

    def example(self) -> tuple[Tensor, ...]:
        """Inputs in the middle of the demonstrations' range."""
        spec = self.spec
        middle = 0.5 * (torch.tensor(spec.low) + torch.tensor(spec.high))
        noise = (torch.full(given.shape, 0.5) for given in self.inputs[1:])
        return middle.expand(spec.history, -1).clone(), *noise

    def _inputs(self, spec: PolicySpec) -> tuple[GraphInput, ...]:
        """What goes in, found by planning once."""
        draws = NotedDraws()
        shape = (spec.history, spec.obs_dim + spec.act_dim)
        with torch.no_grad():
            planned = self.reference
            planned.model.plan(
                torch.zeros(1, *shape), steps=self.steps, draws=draws, sampling=planned.sampling
            )
        return (GraphInput("states", "states", shape), *draws.noted)
