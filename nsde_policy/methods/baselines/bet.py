"""Behaviour Transformer (Shafiullah et al. 2022): a bin of actions and an offset within it.

The demonstrated actions are clustered into bins by k-means. From the last observations, a transformer
predicts the probability of each bin and, for each bin, the offset of the action from its centre. The
transformer is of GPT-2's form (Radford et al. 2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.bounds import Fraction, Length, Size
from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.batches import Windows
from nsde_policy.core.networks import Dropout, weights_from
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout

from ..base import BatchRng, PolicyModel
from ..registry import register_method

INITIAL_STD = 0.02
"""Standard deviation of initial weights; biases and positions start at zero."""
FOCAL_GAMMA = 2.0
"""γ of the focal loss, which reduces the weight of bins that are already likely."""
OFFSET_WEIGHT = 1000.0
"""Weight of the square error of the offsets, in half ranges, relative to the focal loss."""
MOST_ROUNDS = 100
"""Most rounds of k-means."""


@dataclass(frozen=True)
class BehaviourTransformerConfig(WindowConfig):
    """Settings of the Behaviour Transformer."""

    history: Length = 3
    """Number of states in the input, including the current one."""
    horizon: Length = 3
    """Actions of a window; equal to history."""
    bins: Size = 64
    """Number of bins of actions."""
    width: Size = 120
    """Width of the transformer."""
    depth: Size = 6
    """Blocks of the transformer."""
    heads: Size = 6
    """Attention heads per block."""
    dropout: Fraction = 0.1
    """Dropout probability of embeddings, attention and block outputs in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        same = self.horizon == self.history
        require(self, same, f"need horizon == history, got {self.horizon} and {self.history}")
        whole = self.width % self.heads == 0
        require(self, whole, f"width must be a multiple of heads ({self.heads}), got {self.width}")


PRESETS = {
    "default": Preset(
        BehaviourTransformerConfig(),
        TrainConfig(steps=60_000, batch_size=512, learning_rate=3e-4, weight_decay=0.1, betas=(0.9, 0.95)),
        chunk=1,
    ),
    "fast": Preset(
        BehaviourTransformerConfig(bins=24, width=72, depth=2, heads=4),
        TrainConfig(steps=10_000, batch_size=128, learning_rate=1e-3, weight_decay=0.01, betas=(0.9, 0.95)),
        chunk=1,
    ),
}
"""`default` has the sizes of the paper's kitchen task.

Windows, betas and weight decay are those of Diffusion Policy, which trains longer at a lower learning rate.
"""


@register_method("bet", title="Behaviour Transformer", config=BehaviourTransformerConfig, presets=PRESETS)
class BehaviourTransformer(PolicyModel[Windows]):
    """p(bin | observations so far) and one offset per bin; actions in half ranges.

    Deviations: k-means starts with k-means++, in Diffusion Policy's code with random actions; biases and
    norms have weight decay, there they have none.
    """

    centres: Tensor

    def __init__(
        self, config: BehaviourTransformerConfig, spec: StateSpec, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config: BehaviourTransformerConfig = config
        self.layout = StateLayout(spec)
        outputs = config.bins * (1 + spec.act_dim)
        self.transformer = CausalTransformer(
            self.layout.obs_feature_dim, outputs, config, generator=generator
        )
        anywhere = 2 * torch.rand(config.bins, spec.act_dim, generator=generator) - 1
        self.register_buffer("centres", anywhere)
        self._bin_seed = int(torch.randint(2**62, (), generator=generator))

    def prepare(self, data: Windows) -> None:
        """Place the bins by k-means; before, they are random."""
        actions = self.layout.to_unit(data.actions[:, self.config.history - 1])
        generator = torch.Generator().manual_seed(self._bin_seed)
        self.centres.copy_(k_means(actions, self.config.bins, generator=generator))

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the focal loss of the bins and the scaled square error of their offsets."""
        logits, offsets = self._predict(batch.states, generator)
        action = self.layout.to_unit(batch.actions)
        bins = find_bin(action, self.centres)
        error = select_offset(offsets, bins) - (action - self.centres[bins])
        return {
            "focal": focal_loss(logits, bins, gamma=FOCAL_GAMMA),
            "offset": OFFSET_WEIGHT * error.square().mean(),
        }

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Sample a bin at the current state and return its centre plus offset."""
        require(self, steps == 1, f"a plan holds one action, got steps {steps}")
        logits, offsets = (output[:, -1] for output in self._predict(states))
        bins = sample_bins(logits, rng.uniform(1))
        return self.layout.from_unit(self.centres[bins] + select_offset(offsets, bins)).unsqueeze(1)

    def _predict(self, states: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return logits (rows, history, bins) and offsets (rows, history, bins, a), oldest state first."""
        features = self.layout.obs_features(states.flip(1))
        out = self.transformer(features, generator).float()
        bins = self.config.bins
        return out[..., :bins], out[..., bins:].unflatten(-1, (bins, -1))


class TransformerBlock(nn.Module):
    """h + attention(LayerNorm(h)), then h + MLP(LayerNorm(h)) with four times the width inside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.before_mlp = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, h: Tensor, causal: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
        """Map (rows, length, width) to the same shape; `causal` (length, length) is −∞ for masked pairs.

        Dropout masks are those of attention weights, (rows, heads, length, length), and of the outputs of
        attention and MLP, (rows, length, width).
        """
        weights, attended, narrowed = (1.0, 1.0, 1.0) if masks is None else masks
        h = h + self._attend(self.before_attention(h), causal, weights) * attended
        out: Tensor = self.narrow(functional.gelu(self.widen(self.before_mlp(h))))
        return h + out * narrowed

    def _attend(self, h: Tensor, causal: Tensor, mask: Tensor | float = 1.0) -> Tensor:
        shape = (*h.shape[:2], 3, self.heads, -1)
        query, key, value = self.query_key_value(h).reshape(shape).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        weight = (scores + causal).softmax(-1) * mask
        out: Tensor = self.attended((weight @ value).transpose(1, 2).flatten(-2))
        return out


class CausalTransformer(nn.Module):
    """Map (rows, length, inputs) to (rows, length, outputs); outputs see inputs up to their position."""

    causal: Tensor

    def __init__(
        self, inputs: int, outputs: int, config: BehaviourTransformerConfig, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = Dropout(config.dropout)
        length = config.history
        width = config.width
        with weights_from(generator):
            self.embed = nn.Linear(inputs, width)
            self.place = nn.Parameter(torch.zeros(length, width))
            self.blocks = nn.ModuleList(TransformerBlock(width, config.heads) for _ in range(config.depth))
            self.norm = nn.LayerNorm(width)
            self.output = nn.Linear(width, outputs, bias=False)
        self._initialize_weights(generator)
        ahead = torch.full((length, length), -torch.inf).triu(1)
        self.register_buffer("causal", ahead, persistent=False)

    def forward(self, tokens: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Apply the transformer; in training, dropout masks come from `generator`."""
        h = self.embed(tokens) + self.place
        rows, length, _ = h.shape
        depth = len(self.blocks)
        shape = (depth, rows, self.heads, length, length)
        attention = self.dropout.sample_mask(shape, h, generator)
        outputs = self.dropout.sample_mask((2 * depth + 1, *h.shape), h, generator)
        if attention is None or outputs is None:
            for block in self.blocks:
                h = block(h, self.causal)
        else:
            h = h * outputs[-1]
            for i, block in enumerate(self.blocks):
                h = block(h, self.causal, (attention[i], outputs[2 * i], outputs[2 * i + 1]))
        out: Tensor = self.output(self.norm(h))
        return out

    def _initialize_weights(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def k_means(points: Tensor, bins: int, *, generator: torch.Generator) -> Tensor:
    """Cluster points (n, dim) into centres (bins, dim): k-means++ (Arthur & Vassilvitskii 2007), then Lloyd.

    An empty cluster moves to the point that is farthest from its centre.
    """
    points = points.double()
    centres = _initialize_centres(points, bins, generator)
    before = torch.full((len(points),), -1)
    for _ in range(MOST_ROUNDS):
        distance, nearest = torch.cdist(points, centres).min(dim=1)
        if torch.equal(nearest, before):
            break
        before = nearest
        count = torch.bincount(nearest, minlength=bins)
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = total / count.clamp(min=1).unsqueeze(-1)
        for empty in (count == 0).nonzero().squeeze(-1):
            centres[empty] = points[distance.argmax()]
            distance = torch.minimum(distance, (points - centres[empty]).norm(dim=-1))
    return centres.float()


def _initialize_centres(points: Tensor, bins: int, generator: torch.Generator) -> Tensor:
    """Initialise k-means++: sample each centre from the points by squared distance to the earlier ones."""
    first = torch.randint(len(points), (), generator=generator)
    centres = points[first].unsqueeze(0)
    distance = torch.full((len(points),), torch.inf, dtype=points.dtype)
    for _ in range(bins - 1):
        distance = torch.minimum(distance, (points - centres[-1]).square().sum(-1))
        weight = distance if bool(distance.any()) else torch.ones_like(distance)
        new = torch.multinomial(weight, 1, generator=generator)
        centres = torch.cat([centres, points[new]])
    return centres


def find_bin(action: Tensor, centres: Tensor) -> Tensor:
    """Return the bin (...) with the nearest centre of each action (..., dim)."""
    return (action.unsqueeze(-2) - centres).square().sum(-1).argmin(-1)


def focal_loss(logits: Tensor, bins: Tensor, *, gamma: float) -> Tensor:
    """Return the mean of −(1 − p)^γ log p over the true bins' probabilities p (Lin et al. 2017)."""
    log_p = logits.log_softmax(-1).gather(-1, bins.unsqueeze(-1)).squeeze(-1)
    return -((-log_p.expm1()).pow(gamma) * log_p).mean()


def select_offset(offsets: Tensor, bins: Tensor) -> Tensor:
    """Return the offset (..., dim) of each chosen bin (...) from offsets (..., bins, dim)."""
    index = bins[..., None, None].expand(*bins.shape, 1, offsets.shape[-1])
    return offsets.gather(-2, index).squeeze(-2)


def sample_bins(logits: Tensor, uniform: Tensor) -> Tensor:
    """Sample bins (...) with `uniform` numbers in [0, 1), (..., 1), from logits (..., bins)."""
    below = logits.softmax(-1).cumsum(-1)[..., :-1]
    return (uniform >= below).sum(-1)
