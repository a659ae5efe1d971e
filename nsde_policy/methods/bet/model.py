"""Behaviour Transformer (Shafiullah et al. 2022): which bin of actions, and where in it.

The actions of the demonstrations are sorted into bins by k-means. A transformer reads the last observations
and says at each of them how likely every bin is and, for every bin, how far from its centre the action lies.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import Windows, blur
from nsde_policy.methods.base import Draws, LossParts, PolicyModel, Stage, choose_sampling
from nsde_policy.methods.bet.network import CausalTransformer
from nsde_policy.methods.registry import register_method


@dataclass(frozen=True)
class BehaviourTransformerSampling(Sampling):
    """How a bin is drawn; its offset is not random."""

    temperature: float = 1.0
    """Bins are drawn in proportion to p^(1/temperature); 0 takes the likeliest."""

    def __post_init__(self) -> None:
        require(self, 0 <= self.temperature < math.inf, f"need temperature >= 0, got {self.temperature}")


@dataclass(frozen=True)
class BehaviourTransformerConfig(WindowConfig):
    """A transformer that chooses a bin of actions, and an offset within it."""

    history: int = 3
    """States the transformer reads, the present one included."""
    horizon: int = 3
    """Actions of a window: one for each state read, so the same as history."""
    bins: int = 64
    """Bins of actions, placed by k-means."""
    width: int = 120
    """Numbers per place in the transformer."""
    depth: int = 6
    """Blocks of the transformer."""
    heads: int = 6
    """Heads of attention per block."""
    dropout: float = 0.1
    """Fraction left out in training: of embeddings, attention, and what each block adds."""
    noise: float = 0.0
    """Blur of the states read in training, in each dimension's typical increment; the original has none."""
    focal_gamma: float = 2.0
    """γ of the focal loss: how much less a bin counts that is already likely; 0 is cross entropy."""
    offset_scale: float = 1000.0
    """Weight of the offsets' square error, in half ranges of the action, beside the focal loss."""
    sampling: BehaviourTransformerSampling = field(default_factory=BehaviourTransformerSampling)
    """How actions are drawn, unless said otherwise when they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        same = self.horizon == self.history
        require(self, same, f"one action for each state read: horizon {self.horizon}, history {self.history}")
        for name in ("bins", "width", "depth", "heads"):
            require(self, getattr(self, name) >= 1, f"need {name} >= 1, got {getattr(self, name)}")
        require(
            self, self.width % self.heads == 0, f"{self.heads} heads cannot share a width of {self.width}"
        )
        require(self, 0 <= self.dropout < 1, f"need 0 <= dropout < 1, got {self.dropout}")
        require(self, 0 <= self.noise < math.inf, f"need noise >= 0, got {self.noise}")
        smooth = self.focal_gamma == 0 or 1 <= self.focal_gamma < math.inf
        require(self, smooth, f"need focal_gamma = 0 or >= 1, got {self.focal_gamma}")
        require(self, 0 < self.offset_scale < math.inf, f"need offset_scale > 0, got {self.offset_scale}")


PRESETS = {
    "default": Preset(
        BehaviourTransformerConfig(),
        TrainConfig(steps=60_000, batch_size=512, learning_rate=3e-4, weight_decay=0.1, betas=(0.9, 0.95)),
        chunk=1,
    ),
    "small": Preset(
        BehaviourTransformerConfig(bins=24, width=72, depth=4, heads=4),
        TrainConfig(steps=80_000, batch_size=256, learning_rate=3e-4, weight_decay=0.1, betas=(0.9, 0.95)),
        chunk=1,
    ),
    "fast": Preset(
        BehaviourTransformerConfig(bins=24, width=72, depth=2, heads=4),
        TrainConfig(steps=10_000, batch_size=128, learning_rate=1e-3, weight_decay=0.01, betas=(0.9, 0.95)),
        chunk=1,
    ),
}
"""`default` has the sizes of the paper's kitchen task, `small` those of its block pushing. Windows, betas and
weight decay are Diffusion Policy's, which trains for longer at a lower rate.
"""


@register_method("bet", title="Behaviour Transformer", config=BehaviourTransformerConfig, presets=PRESETS)
class BehaviourTransformer(PolicyModel[Windows]):
    """p(bin | observations up to now), and one offset per bin; actions in units of half their range.

    Deviations: Diffusion Policy's code starts k-means at random actions, here it starts with k-means++; it
    spares biases and norms the weight decay, the common trainer does not.
    """

    centres: Tensor

    def __init__(
        self, config: BehaviourTransformerConfig, layout: StateSpec, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config: BehaviourTransformerConfig = config
        self.layout = StateLayout(layout)
        self.transformer = CausalTransformer(
            self.layout.obs_feature_dim,
            config.bins * (1 + layout.act_dim),
            length=config.history,
            width=config.width,
            depth=config.depth,
            heads=config.heads,
            dropout=config.dropout,
            generator=generator,
        )
        anywhere = 2 * torch.rand(config.bins, layout.act_dim, generator=generator) - 1
        self.register_buffer("centres", anywhere)
        self._bin_seed = int(torch.randint(2**62, (), generator=generator))

    def prepare(self, data: Windows) -> None:
        """Place the bins; until then they lie anywhere in the range of the actions."""
        actions = self.layout.to_unit(data.actions[:, self.config.history - 1])
        generator = torch.Generator().manual_seed(self._bin_seed)
        self.centres.copy_(k_means(actions, self.config.bins, generator=generator))

    def loss(self, batch: Windows, generator: torch.Generator) -> LossParts:
        """The focal loss of the bins and the scaled square error of their offsets, over the whole window."""
        states = batch.states
        if self.config.noise > 0:
            states = blur(states, self.config.noise * self.layout.increment_std, generator)
        logits, offsets = self._answer(states, generator)
        action = self.layout.to_unit(batch.actions)
        chosen = nearest(action, self.centres)
        error = offset_error(offsets, chosen, action - self.centres[chosen])
        return LossParts(
            {
                "focal": focal_loss(logits, chosen, gamma=self.config.focal_gamma),
                "offset": self.config.offset_scale * error,
            }
        )

    def stages(self) -> tuple[Stage, ...]:
        """Everything at once."""
        return (Stage(("focal", "offset"), tuple(self.parameters())),)

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        """One action: a bin drawn at the present state, and its offset."""
        require(self, steps == 1, f"plans hold one action, asked for {steps}")
        temperature = choose_sampling(self.config.sampling, sampling).temperature
        logits, offsets = (answer[:, -1] for answer in self._answer(states))
        chosen = draw_bins(logits, draws.uniform(1), temperature=temperature)
        return self.layout.from_unit(self.centres[chosen] + at_bin(offsets, chosen)).unsqueeze(1)

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """One."""
        return 1

    def _answer(self, states: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """At each state, the oldest first: logits (rows, history, bins), offsets (rows, history, bins, a)."""
        features = self.layout.obs_features(states.flip(1))
        out = self.transformer(features, generator).float()
        bins = self.config.bins
        return out[..., :bins], out[..., bins:].unflatten(-1, (bins, -1))


def k_means(points: Tensor, bins: int, *, generator: torch.Generator, rounds: int = 100) -> Tensor:
    """Centres (bins, dim) of points (n, dim): k-means++ (Arthur & Vassilvitskii 2007), then Lloyd's rounds.

    A centre that no point is nearest to moves to the point that is farthest from its own.
    """
    points = points.double()
    centres = _spread_out(points, bins, generator)
    before = torch.full((len(points),), -1)
    for _ in range(rounds):
        distance, chosen = torch.cdist(points, centres).min(dim=1)
        if torch.equal(chosen, before):
            break
        before = chosen
        count = torch.bincount(chosen, minlength=bins)
        total = torch.zeros_like(centres).index_add_(0, chosen, points)
        centres = total / count.clamp(min=1).unsqueeze(-1)
        for empty in (count == 0).nonzero().squeeze(-1):
            centres[empty] = points[distance.argmax()]
            distance = torch.minimum(distance, (points - centres[empty]).norm(dim=-1))
    return centres.float()


def _spread_out(points: Tensor, bins: int, generator: torch.Generator) -> Tensor:
    """The beginning of k-means++: each centre is a point, drawn by its squared distance to those before."""
    first = torch.randint(len(points), (), generator=generator)
    centres = points[first].unsqueeze(0)
    distance = torch.full((len(points),), torch.inf, dtype=points.dtype)
    for _ in range(bins - 1):
        distance = torch.minimum(distance, (points - centres[-1]).square().sum(-1))
        weight = distance if bool(distance.any()) else torch.ones_like(distance)
        new = torch.multinomial(weight, 1, generator=generator)
        centres = torch.cat([centres, points[new]])
    return centres


def nearest(action: Tensor, centres: Tensor) -> Tensor:
    """The bin of each action (..., dim), (...): that of the nearest centre."""
    return (action.unsqueeze(-2) - centres).square().sum(-1).argmin(-1)


def focal_loss(logits: Tensor, chosen: Tensor, *, gamma: float) -> Tensor:
    """Mean of −(1 − p)^γ log p over the true bins' probabilities p (Lin et al. 2017)."""
    log_p = logits.log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    return -((-log_p.expm1()).pow(gamma) * log_p).mean()


def offset_error(offsets: Tensor, chosen: Tensor, true: Tensor) -> Tensor:
    """Mean square error of the true bins' offsets alone: the others, of (..., bins, dim), learn nothing."""
    return (at_bin(offsets, chosen) - true).square().mean()


def at_bin(offsets: Tensor, chosen: Tensor) -> Tensor:
    """The offset (..., dim) that (..., bins, dim) holds for each chosen bin (...)."""
    index = chosen[..., None, None].expand(*chosen.shape, 1, offsets.shape[-1])
    return offsets.gather(-2, index).squeeze(-2)


def draw_bins(logits: Tensor, uniform: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The bins (...) that numbers in [0, 1), (..., 1), pick by the probabilities of logits (..., bins)."""
    if temperature == 0:
        return logits.argmax(-1)
    below = (logits / temperature).softmax(-1).cumsum(-1)[..., :-1]
    return (uniform >= below).sum(-1)
