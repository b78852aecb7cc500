"""The `pdet_stack` operator: a plain transformer whose tokens are the latent cells.

One block, with γ, β, g from the conditions (two of each) and N(x) = (x − mean) / std over channels:

    h ← (1 + γ) ⊙ N(x) + β,   x ← x + (1 + g) ⊙ W_o softmax( R_i q̂_i · R_j k̂_j / √d ) v
    h ← (1 + γ) ⊙ N(x) + β,   x ← x + (1 + g) ⊙ W₂ σ( W₁ h )

q, k, v are one product; q̂, k̂ are q, k divided by their rms within each head, times a learned scale. R_i turns pairs
of channels by ω · position of token i, so that attention sees differences of positions only. Each axis has its share
of the pairs. On a periodic axis ω is a whole multiple of 2π/L, so a difference is the same the other way round, and
shifts by a latent cell commute; on a bounded axis ω runs geometrically from π/L to one radian a cell. One pair of each
axis does not turn.

Every cell hears every other: the cost grows with the square of their number. Above a few thousand cells choose a
coarser `latent_spacing`. Heads of 64 channels and an expansion of 4 suit GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from ups.config.settings import Positive
from ups.errors import UserError
from ups.models.geometry import Frame
from ups.models.operator.body import Stack
from ups.models.operator.settings import OperatorSettings
from ups.models.precision import product

HEAD = 64
"""Channels of a head, where the number of heads is not given."""
EPSILON = 1e-6


@dataclass(frozen=True, eq=False)
class Rotation:
    """How each token turns its pairs of channels (i, i + d/2): x ← x ⊙ cos + (halves of x swapped) ⊙ sin."""

    cos: Float[Tensor, "N 1 1 d"]
    sin: Float[Tensor, "N 1 1 d"]


class PdetStackSettings(OperatorSettings):
    heads: Positive | None = Field(default=None, description="of attention; one for every 64 of width if not given")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        heads_of(self.width, self.heads, 1)
        return self


def heads_of(width: int, heads: int | None, dimension: int) -> int:
    """How many heads there are, each of which turns pairs of channels along every axis."""
    heads = heads or max(1, width // HEAD)
    if width % heads or (width // heads) % 2 or width // heads < 2 * dimension:
        raise UserError(
            f"heads {heads} does not divide width {width} into heads of an even number of channels, at least "
            f"{2 * dimension}; change either"
        )
    return heads


class PdetStack:
    """The architecture's blocks, and the tables they need of a frame."""

    separate = False

    def __init__(
        self,
        frames: Mapping[str, Frame],
        *,
        width: int,
        heads: int | None = None,
        expansion: float = 2.0,
    ) -> None:
        self.width, self.expansion = width, expansion
        self.heads = heads_of(width, heads, max(frame.grid.dimension for frame in frames.values()))

    def body(self, depth: int) -> Stack:
        return Stack(self.block() for _ in range(depth))

    def block(self) -> PdetBlock:
        return PdetBlock(self.width, self.heads, self.expansion)

    def tables(self, task: str, frame: Frame, put: Callable[[Tensor], Tensor]) -> Rotation:
        latent, pairs = frame.latent, self.width // self.heads // 2
        shares = [pairs // latent.dimension + (axis < pairs % latent.dimension) for axis in range(latent.dimension)]
        angles = [
            (positions - span[0])[:, None] * frequencies(span[1] - span[0], len(positions), wraps, share)
            for positions, span, wraps, share in zip(
                latent.positions, latent.extent, frame.boundary.periodic, shares, strict=True
            )
        ]
        places = torch.meshgrid(*(torch.arange(n) for n in latent.shape), indexing="ij")
        angle = torch.cat([table[place.flatten()] for table, place in zip(angles, places, strict=True)], -1)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)
        return Rotation(*(put(table)[:, None, None] for table in (cos, sin)))


def frequencies(length: float, points: int, periodic: bool, count: int) -> Float[Tensor, " count"]:
    """Radians per length of each pair: zero (content alone), then geometric up to about one radian a cell.

    On a periodic axis they are whole multiples of 2π/L: different ones, as far as the points tell them apart.
    """
    slowest = (2 if periodic else 1) * math.pi / length
    fastest = max(1.0, points / length / slowest)
    multiples = torch.logspace(0.0, math.log10(fastest), max(1, count - 1), dtype=torch.float64)
    if periodic:
        order = torch.arange(len(multiples))
        multiples = ((multiples.round() - order).cummax(0).values + order).clamp(max=max(1, points // 2))
    radians = slowest * multiples
    return torch.cat([radians.new_zeros(1), radians]) if count > 1 else radians


class PdetBlock(nn.Module):
    """Attention over all latent cells, then a channel MLP, both conditioned."""

    compiled = True
    products: torch.dtype | None = None
    """The type that the factors of matrix products and attention are rounded to; None: not at all."""

    def __init__(self, width: int, heads: int, expansion: float) -> None:
        super().__init__()
        hidden = int(expansion * width)
        self.heads, self.modulated = heads, 6 * width
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.query_scale = nn.Parameter(torch.ones(width // heads))
        self.key_scale = nn.Parameter(torch.ones(width // heads))
        self.mixed = nn.Linear(width, width)
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)

    def attend(self, h: Float[Tensor, "B N D"], rotation: Rotation) -> Float[Tensor, "B N D"]:
        """Softmax attention. The scales are folded into the tables, so q̂ and k̂ are scaled and turned in one go."""
        qkv = product(h, self.qkv.weight, None, self.products).unflatten(-1, (3, self.heads, -1))
        both, v = qkv.split([2, 1], 2)
        half = both.shape[-1] // 2
        both = F.rms_norm(both.to(h.dtype), both.shape[-1:], eps=EPSILON)
        scale = torch.stack([self.query_scale, self.key_scale])[:, None]
        turned = both * (rotation.cos * scale) + both.roll(half, -1) * (rotation.sin * scale.roll(half, -1))
        q, k = turned.to(v.dtype).unbind(2)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.squeeze(2).transpose(1, 2))
        return out.transpose(1, 2).flatten(2)

    def forward(
        self, x: Float[Tensor, "B *latent D"], modulation: Float[Tensor, "B six_D"], rotation: Rotation
    ) -> Float[Tensor, "B *latent D"]:
        tokens = x.flatten(1, -2)
        shift, gain, gate, shift_2, gain_2, gate_2 = modulation[:, None].chunk(6, -1)
        h = torch.addcmul(shift, _normalised(tokens), 1 + gain)
        heard = product(self.attend(h, rotation), self.mixed.weight, self.mixed.bias, self.products)
        tokens = torch.addcmul(tokens, 1 + gate, heard)
        h = torch.addcmul(shift_2, _normalised(tokens), 1 + gain_2)
        inner = F.silu(product(h, self.inner.weight, self.inner.bias, self.products))
        outer = product(inner, self.outer.weight, self.outer.bias, self.products)
        tokens = torch.addcmul(tokens, 1 + gate_2, outer)
        return tokens.view(x.shape)


def _normalised(x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON)
