"""Nearest neighbours: replay the actions recorded at the most similar state.

Nothing is learned: all recorded windows are stored. It is the baseline of pure memorisation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nsde_policy.bounds import Length
from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig
from nsde_policy.core.batches import Windows
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout

from ..base import BatchRng, PolicyModel, choose_sampling
from ..registry import register_method


@dataclass(frozen=True)
class NearestNeighboursSampling(Sampling):
    """How the nearest recorded state becomes actions."""

    actions: Literal["absolute", "relative"] = "absolute"
    """Replay recorded actions, or shift them by the difference of the last actions."""


@dataclass(frozen=True)
class NearestNeighboursConfig(WindowConfig):
    """Settings of nearest neighbours."""

    horizon: Length = 9
    """Actions stored with a state (T_p), counted from the oldest state in the input."""
    sampling: NearestNeighboursSampling = field(default_factory=NearestNeighboursSampling)
    """Default settings of sampling."""


PRESETS = dict.fromkeys(("default", "fast"), Preset(NearestNeighboursConfig(), TrainConfig(steps=1)))


class StoredWindows(PolicyModel[Windows]):
    """A method without training: all recorded windows, found by their distance to the present states."""

    features: Tensor
    previous: Tensor
    actions: Tensor

    def __init__(self, config: WindowConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: WindowConfig = config
        self.layout = StateLayout(spec)
        self.register_buffer("features", self._encode(torch.empty(0, config.history, spec.dim)))
        self.register_buffer("previous", torch.empty(0, spec.act_dim))
        self.register_buffer("actions", torch.empty(0, config.longest_chunk, spec.act_dim))

    def prepare(self, data: Windows) -> None:
        """Store the features, the previous action and the following actions of every window."""
        self.features = self._encode(data.states)
        self.previous = data.states[:, 0, self.layout.spec.obs_dim :].clone()
        self.actions = data.actions[:, self.config.history - 1 :].clone()

    def allocate_for(self, weights: Mapping[str, Tensor]) -> None:
        """Allocate as many windows as the checkpoint holds."""
        for name in ("features", "previous", "actions"):
            buffer = getattr(self, name)
            n = weights[name].shape[:1] if name in weights else (0,)
            setattr(self, name, buffer.new_empty(*n, *buffer.shape[1:]))

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return no losses; there is nothing to train."""
        return {}

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Return 0; there is no network."""
        return 0

    def _find_nearest(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the distances and the indices of the nearest windows, both (rows, count)."""
        distance = torch.cdist(features, self.features, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distance.topk(min(count, len(self.features)), largest=False)
        return nearest.values, nearest.indices

    def _encode(self, states: Tensor) -> Tensor:
        """Return the features whose Euclidean distances are compared, (rows, n)."""
        return self.layout.features(states).flatten(-2)


@register_method("knn", title="Nearest neighbours", config=NearestNeighboursConfig, presets=PRESETS)
class NearestNeighbours(StoredWindows):
    """Euclidean distances over all states of the input, positions in [-1, 1], angles as sine and cosine."""

    samples = False
    config: NearestNeighboursConfig

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Return the actions of the nearest recorded state; deterministic."""
        nearest = self._find_nearest(self._encode(states), 1)[1][:, 0]
        actions = self.actions[nearest, :steps]
        if choose_sampling(self.config.sampling, sampling).actions == "relative":
            last = states[:, 0, self.layout.spec.obs_dim :]
            actions = actions + (last - self.previous[nearest])[:, None]
        return actions
