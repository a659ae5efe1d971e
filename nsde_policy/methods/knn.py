"""Nearest neighbours of the state: what was done where it looked most like this is done again.

Nothing is learned; every recorded window is kept, and the question is how far a memory alone gets.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.base import Draws, LossParts, PolicyModel, Stage, choose_sampling
from nsde_policy.methods.registry import register_method

SAME_PLACE = 1e-6
"""Added to distances before they are inverted, in units of half a dimension's range."""


@dataclass(frozen=True)
class NearestNeighboursSampling(Sampling):
    """How neighbours are turned into actions; the memory stays the same."""

    k: int = 1
    """Neighbours that are averaged; 1 replays what was done at the nearest."""
    weights: Literal["uniform", "inverse"] = "uniform"
    """All neighbours count alike, or by the inverse of their distance."""
    actions: Literal["absolute", "relative"] = "absolute"
    """Repeat the recorded commands, or move them by how far the last command is from the one recorded."""

    def __post_init__(self) -> None:
        require(self, self.k >= 1, f"need k >= 1, got {self.k}")


@dataclass(frozen=True)
class NearestNeighboursConfig(WindowConfig):
    """Nearest neighbours of the state."""

    horizon: int = 9
    """Actions remembered with a state (T_p), counted from the oldest state seen."""
    sampling: NearestNeighboursSampling = field(default_factory=NearestNeighboursSampling)
    """How neighbours are turned into actions, unless said otherwise when they are."""


PRESETS = {
    "default": Preset(NearestNeighboursConfig(), TrainConfig(steps=1)),
    "relative": Preset(
        NearestNeighboursConfig(sampling=NearestNeighboursSampling(actions="relative")), TrainConfig(steps=1)
    ),
    "fast": Preset(NearestNeighboursConfig(), TrainConfig(steps=1)),
}


@register_method("knn", title="Nearest neighbours", config=NearestNeighboursConfig, presets=PRESETS)
class NearestNeighbours(PolicyModel[Windows]):
    """Distances are Euclidean over all states seen, positions in [-1, 1], angles as sine and cosine."""

    features: Tensor
    previous: Tensor
    actions: Tensor

    def __init__(
        self, config: NearestNeighboursConfig, layout: StateSpec, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config: NearestNeighboursConfig = config
        self.layout = StateLayout(layout)
        self.register_buffer("features", torch.empty(0, config.history * self.layout.feature_dim))
        self.register_buffer("previous", torch.empty(0, layout.act_dim))
        self.register_buffer("actions", torch.empty(0, config.longest_chunk, layout.act_dim))

    def prepare(self, data: Windows) -> None:
        """Remember every window: its features, the command before it, the commands from its present on."""
        self.features = self.layout.features(data.states).flatten(-2)
        self.previous = data.states[:, 0, self.layout.spec.obs_dim :].clone()
        self.actions = data.actions[:, self.config.history - 1 :].clone()

    def allocate_for(self, weights: Mapping[str, Tensor]) -> None:
        """As many windows as the saved memory holds."""
        for name in ("features", "previous", "actions"):
            buffer = getattr(self, name)
            n = weights[name].shape[:1] if name in weights else (0,)
            setattr(self, name, buffer.new_empty(*n, *buffer.shape[1:]))

    def loss(self, batch: Windows, generator: torch.Generator) -> LossParts:
        """None: there is nothing to train."""
        return LossParts({})

    def stages(self) -> tuple[Stage, ...]:
        """None."""
        return ()

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        """The actions of the nearest recorded state, or the mean of several's; nothing is drawn."""
        chosen = choose_sampling(self.config.sampling, sampling)
        if chosen.k > len(self.features):
            raise ConfigError(f"k = {chosen.k} neighbours, but {len(self.features)} windows are remembered")
        query = self.layout.features(states).flatten(-2)
        between = torch.cdist(query, self.features, compute_mode="donot_use_mm_for_euclid_dist")
        distance, index = between.topk(chosen.k, largest=False)
        actions = self.actions[index, :steps]
        if chosen.actions == "relative":
            last = states[:, 0, self.layout.spec.obs_dim :]
            actions = actions + (last[:, None] - self.previous[index])[:, :, None]
        weight = 1 / (distance + SAME_PLACE) if chosen.weights == "inverse" else torch.ones_like(distance)
        return self._mean(actions, weight / weight.sum(-1, keepdim=True))

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """There is no network to call."""
        return 0

    def _mean(self, actions: Tensor, weight: Tensor) -> Tensor:
        """Weighted mean over neighbours, actions (rows, k, steps, a), weight (rows, k), nearest first.

        Taken as the nearest plus the mean way from it to the others, the shorter way round for angles.
        """
        way = actions - actions[:, :1]
        shorter = torch.remainder(way + math.pi, 2 * math.pi) - math.pi
        way = torch.where(self.layout.is_circular[self.layout.spec.obs_dim :], shorter, way)
        return actions[:, 0] + (weight[..., None, None] * way).sum(1)
