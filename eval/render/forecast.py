"""What a policy expects to happen, as shapes that can be drawn over a Push-T scene."""

from dataclasses import dataclass

import numpy as np
import torch

from nsde_policy.eval.rollout import RolloutConfig, Trace
from nsde_policy.inference.history import History
from nsde_policy.inference.policy import Policy

HORIZON = 24
"""Control periods a forecast looks ahead; a policy that plans farther is followed to the end of its plan."""
SAMPLES = 64
"""Futures sampled for the spread."""
PATHS, GHOSTS = 24, 4
"""How many of them are drawn, as paths of the agent and as poses of the block."""
SIGMAS = 2.0
_IN_BETWEEN = 4
"""Ellipses per control period: enough of them look like a tube."""


def forecast_generator(seed: int) -> torch.Generator:
    """Noise of the pictures of an episode: never that of a rollout, whose seeds are below 2³²."""
    return torch.Generator().manual_seed(2**32 + seed)


@dataclass(frozen=True)
class Forecast:
    """Sampled futures of agent and block."""

    agent: np.ndarray
    """(steps + 1, SAMPLES, 2), the present first."""
    block: np.ndarray
    """(steps + 1, SAMPLES, 3); no samples from a policy that does not foresee the block."""

    @classmethod
    def of(
        cls, policy: Policy, memory: History, config: RolloutConfig, generator: torch.Generator
    ) -> "Forecast":
        """Sample futures from what a policy knew when it planned, drawn as its plans are."""
        if not policy.model.foresees_states:
            return cls._of_plans(policy, memory, config, generator)
        states = policy.sample(
            memory,
            n=SAMPLES,
            steps=max(HORIZON, config.chunk or policy.chunk),
            generator=generator,
            sampling=config.sampling,
        )
        array = states.double().numpy()
        return cls(agent=array[:, :, :2], block=array[:, :, 2:5])

    @classmethod
    def _of_plans(
        cls, policy: Policy, memory: History, config: RolloutConfig, generator: torch.Generator
    ) -> "Forecast":
        """Futures of a policy that plans actions alone: where it would send the agent."""
        steps = config.chunk or policy.chunk
        plans = policy.plans(
            [memory] * SAMPLES, generators=[generator] * SAMPLES, chunk=steps, sampling=config.sampling
        )
        targets = np.stack([plan.actions for plan in plans], axis=1)
        here = np.broadcast_to(memory.states()[0, :2].astype(np.float64), (1, SAMPLES, 2))
        return cls(agent=np.concatenate([here, targets]), block=np.empty((steps + 1, 0, 3)))

    def later(self, periods: int) -> "Forecast":
        """What is still ahead after some control periods."""
        return Forecast(self.agent[periods:], self.block[periods:])

    @property
    def paths(self) -> np.ndarray:
        """Some of the agent's futures, (PATHS, steps + 1, 2)."""
        return self.agent[:, :PATHS].swapaxes(0, 1)

    @property
    def regions(self) -> list[np.ndarray]:
        """Where the agent will be within two standard deviations: ellipses along the way that make a tube."""
        ahead = self.agent[1:]
        mean = _in_between(ahead.mean(axis=1))
        off = ahead - ahead.mean(axis=1, keepdims=True)
        covariance = _in_between(np.einsum("tni,tnj->tij", off, off) / (SAMPLES - 1))
        variances, axes = np.linalg.eigh(covariance)
        reach = SIGMAS * np.sqrt(np.maximum(variances, 0.0))
        angle = np.linspace(0.0, 2 * np.pi, 36, endpoint=False)
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        return list(mean[:, None] + np.einsum("pj,tj,tij->tpi", circle, reach, axes))

    @property
    def ghosts(self) -> np.ndarray:
        """Where the block may be in the end, (GHOSTS, 3)."""
        return self.block[-1, :GHOSTS]


def _in_between(values: np.ndarray) -> np.ndarray:
    """Add linear steps between neighbours along the first axis."""
    weights = np.arange(_IN_BETWEEN).reshape(-1, *[1] * values.ndim) / _IN_BETWEEN
    between = values[:-1] * (1 - weights) + values[1:] * weights  # (_IN_BETWEEN, steps - 1, …)
    return np.concatenate([between.swapaxes(0, 1).reshape(-1, *values.shape[1:]), values[-1:]])


def forecasts(
    policy: Policy, trace: Trace, config: RolloutConfig, generator: torch.Generator
) -> list[Forecast]:
    """For every control period of an episode but its end, what is ahead by the plan then in force."""
    found: list[Forecast] = []
    ends = [start for start, _ in trace.memories[1:]] + [len(trace.actions)]
    for (start, memory), end in zip(trace.memories, ends, strict=True):
        ahead = Forecast.of(policy, memory, config, generator)
        found += [ahead.later(k) for k in range(end - start)]
    return found
