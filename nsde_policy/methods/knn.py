"""Nearest neighbours: replay the actions recorded at the most similar state.

Nothing is learned: all recorded windows are stored. It is the baseline of pure memorisation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nsde_policy.bounds import Length, Size
from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout, wrap_circular
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.base import Draws, LossParts, PolicyModel, Stage, choose_sampling
from nsde_policy.methods.registry import register_method

SAME_PLACE = 1e-6
"""Added to distances before they are inverted, in units of half a dimension's range."""


@dataclass(frozen=True)
class NearestNeighboursSampling(Sampling):
    """How neighbours are combined to actions."""

    k: Size = 1
    """Neighbours that are averaged; 1 replays the nearest."""
    weights: Literal["uniform", "inverse"] = "uniform"
    """Equal weights, or weights by inverse distance."""
    actions: Literal["absolute", "relative"] = "absolute"
    """Replay recorded actions, or shift them by the difference of the last actions."""


@dataclass(frozen=True)
class NearestNeighboursConfig(WindowConfig):
    """Settings of nearest neighbours."""

    horizon: Length = 9
    """Actions stored with a state (T_p), counted from the oldest state in the input."""
    sampling: NearestNeighboursSampling = field(default_factory=NearestNeighboursSampling)
    """Default combination of neighbours."""


PRESETS = {
    "default": Preset(NearestNeighboursConfig(), TrainConfig(steps=1)),
    "relative": Preset(
        NearestNeighboursConfig(sampling=NearestNeighboursSampling(actions="relative")), TrainConfig(steps=1)
    ),
    "fast": Preset(NearestNeighboursConfig(), TrainConfig(steps=1)),
}


@register_method("knn", title="Nearest neighbours", config=NearestNeighboursConfig, presets=PRESETS)
class NearestNeighbours(PolicyModel[Windows]):
    """Euclidean distances over all states of the input, positions in [-1, 1], angles as sine and cosine."""

    features: Tensor
    previous: Tensor
    actions: Tensor

    def __init__(
        self, config: NearestNeighboursConfig, spec: StateSpec, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config: NearestNeighboursConfig = config
        self.layout = StateLayout(spec)
        self.register_buffer("features", torch.empty(0, config.history * self.layout.feature_dim))
        self.register_buffer("previous", torch.empty(0, spec.act_dim))
        self.register_buffer("actions", torch.empty(0, config.longest_chunk, spec.act_dim))

    def prepare(self, data: Windows) -> None:
        """Store the features, the previous action and the following actions of every window."""
        self.features = self.layout.features(data.states).flatten(-2)
        self.previous = data.states[:, 0, self.layout.spec.obs_dim :].clone()
        self.actions = data.actions[:, self.config.history - 1 :].clone()

    def allocate_for(self, weights: Mapping[str, Tensor]) -> None:
        """Allocate as many windows as the checkpoint holds."""
        for name in ("features", "previous", "actions"):
            buffer = getattr(self, name)
            n = weights[name].shape[:1] if name in weights else (0,)
            setattr(self, name, buffer.new_empty(*n, *buffer.shape[1:]))

    def loss(self, batch: Windows, generator: torch.Generator) -> LossParts:
        """Return no losses; there is nothing to train."""
        return LossParts({})

    def stages(self) -> tuple[Stage, ...]:
        """Return no stages; there is nothing to train."""
        return ()

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        """Return the actions of the nearest recorded state, or a mean of several; deterministic."""
        chosen = choose_sampling(self.config.sampling, sampling)
        if chosen.k > len(self.features):
            raise ConfigError(
                f"k is {chosen.k}, but only {len(self.features)} windows are stored; choose a smaller k"
            )
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
        """Return 0; there is no network."""
        return 0

    def _mean(self, actions: Tensor, weight: Tensor) -> Tensor:
        """Weighted mean over neighbours, actions (rows, k, steps, a), weight (rows, k), nearest first.

        Computed as the nearest plus the mean difference to the others; for angles the shorter way round.
        """
        is_circular = self.layout.is_circular[self.layout.spec.obs_dim :]
        way = wrap_circular(actions - actions[:, :1], is_circular)
        return actions[:, 0] + (weight[..., None, None] * way).sum(1)
