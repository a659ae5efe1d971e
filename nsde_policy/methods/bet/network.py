"""A causal transformer over a window of observations, of GPT-2's form (Radford et al. 2019)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.core.networks import dropout_mask, weights_from
from nsde_policy.errors import ConfigError

INITIAL_STD = 0.02
"""Standard deviation of initial weights; biases and positions start at zero."""


class BlockMasks(NamedTuple):
    """Dropout masks of one block."""

    attention: Tensor
    """Mask of attention weights, (rows, heads, length, length)."""
    attended: Tensor
    """Mask of the attention output, (rows, length, width)."""
    mlp: Tensor
    """Mask of the MLP output, (rows, length, width)."""


class TransformerBlock(nn.Module):
    """h + attention(LayerNorm(h)), then h + MLP(LayerNorm(h)) with four times the width inside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor, causal: Tensor, masks: BlockMasks | None) -> Tensor:
        """Map (rows, length, width) to the same shape; `causal` (length, length) is −∞ for masked pairs."""
        new = self._attend(self.before_attention(h), causal, masks)
        h = h + (new if masks is None else new * masks.attended)
        new = self._apply_mlp(self.before_mlp(h))
        return h + (new if masks is None else new * masks.mlp)

    def _attend(self, h: Tensor, causal: Tensor, masks: BlockMasks | None) -> Tensor:
        shape = (*h.shape[:2], 3, self.heads, -1)
        query, key, value = self.query_key_value(h).reshape(shape).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        weight = (scores + causal).softmax(-1)
        if masks is not None:
            weight = weight * masks.attention
        out: Tensor = self.attended((weight @ value).transpose(1, 2).flatten(-2))
        return out

    def _apply_mlp(self, h: Tensor) -> Tensor:
        out: Tensor = self.narrow(functional.gelu(self.widen(h)))
        return out


class CausalTransformer(nn.Module):
    """Map (rows, length, inputs) to (rows, length, outputs); outputs see inputs up to their position."""

    causal: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        length: int,
        width: int,
        depth: int,
        heads: int,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"width must be a multiple of heads ({heads}), got {width}")
        self.heads, self.keep = heads, 1 - dropout
        with weights_from(generator):
            self.embed = nn.Linear(inputs, width)
            self.place = nn.Parameter(torch.zeros(length, width))
            self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
            self.norm = nn.LayerNorm(width)
            self.output = nn.Linear(width, outputs, bias=False)
        self._draw_weights(generator)
        ahead = torch.full((length, length), -torch.inf).triu(1)
        self.register_buffer("causal", ahead, persistent=False)

    def forward(self, tokens: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Apply the transformer; in training, dropout masks come from `generator`."""
        h = self.embed(tokens) + self.place
        first, rest = self._dropout_masks(h, generator)
        if first is not None:
            h = h * first
        for block, masks in zip(self.blocks, rest, strict=True):
            h = block(h, self.causal, masks)
        out: Tensor = self.output(self.norm(h))
        return out

    def _draw_weights(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def _dropout_masks(
        self, h: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor | None, list[BlockMasks | None]]:
        """Draw the masks of the embedding and of each block."""
        depth = len(self.blocks)
        if not self.training or self.keep == 1:
            return None, [None] * depth
        rows, length, _ = h.shape
        attention = dropout_mask((depth, rows, self.heads, length, length), self.keep, h, generator)
        outputs = dropout_mask((2 * depth + 1, *h.shape), self.keep, h, generator)
        return outputs[-1], [
            BlockMasks(attention[i], outputs[2 * i], outputs[2 * i + 1]) for i in range(depth)
        ]
