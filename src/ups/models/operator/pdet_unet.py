"""The `pdet_unet` operator: a U-shaped transformer, after Holzschuh et al., "PDE-Transformer", ICML 2025.

Stages of blocks go down a ladder of grids, each half as fine and twice as wide as the one before, and up again:

    level 0   stage ──────────────────── + stage        + : what the finer grid held before, and what comes up to it
                 └─ level 1   stage ── + stage ─┘
                                 └─ stage ─┘

One block, with γ, β, g from the conditions (one of each a line), N(x) = x / rms over channels:

    x ← x + (1 + g) ⊙ A_window( (1 + γ) ⊙ N(x) + β )
    x ← x + (1 + g) ⊙ A_channels( (1 + γ) ⊙ N(x) + β )                            (`channels: separate` alone)
    x ← x + (1 + g) ⊙ W₂ σ( W₁ ((1 + γ) ⊙ N(x) + β) )

    A(h)_i = W_o Σ_j softmax_j( q̂_i · k̂_j / √d + b(i − j) ) v_j

A_window is attention among the cells of a window; in every second block windows are moved by half of one. q̂, k̂ are q, k
divided by their rms within each head, times a learned scale. b is a small network of the signed logarithms of distances
in cells, a number a head: it has no table of places, so windows may be of any size. A_channels is attention among the
channels of one place, without b.

`channels: mixed` has one token a cell, of all channels; `separate` one for each channel of a cell, so that channels of
different tasks need only have their names in common, at the cost of as many tokens more.

Any grid: see `tiling.py` for those that do not divide. An axis that is a single window is heard all around, where it is
periodic, and shifts by a cell of the coarsest level commute; along others, shifts by a whole window of each level. The
cost grows with the number of cells; where there are walls, shifted windows have a mask each, of as many numbers as one
head's logits of one sample. Values that work in a minute on one core, and the defaults: width 32, three levels, a block
a stage, heads of 16 channels, windows of 64 cells (64 in 1D, 8 × 8, 4 × 4 × 4). On Kuramoto-Sivashinsky one or two
levels and windows of 16 were worse (docs/performance.md). Not tried: the paper's sizes, which are wider and deeper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from ups.config.settings import Positive
from ups.errors import UserError
from ups.models.geometry import Frame
from ups.models.network import matrices_of
from ups.models.operator.settings import OperatorSettings
from ups.models.operator.tiling import Tiling, window_size
from ups.models.precision import product

HEAD = 16
"""Channels of a head, where the number of heads is not given."""
HIDDEN = 32
"""Width of the network of distances."""
SMALLEST = 4
"""An axis of fewer cells is not halved."""
EPSILON = 1e-6


class PdetUnetSettings(OperatorSettings):
    width: Positive = Field(default=32, description="channels of the latents at the finest level")
    depth: Positive = Field(default=1, description="blocks of a stage, of which there are 2 levels − 1")
    levels: Positive = Field(default=3, description="grids, each half as fine and twice as wide as the one before")
    window: Positive = Field(default=64, description="cells that attend to one another: 64 are 8 × 8 in 2D")
    heads: Positive | None = Field(
        default=None, description="of attention at the finest level; one for every 16 of width if not given"
    )
    channels: Literal["mixed", "separate"] = Field(
        default="mixed", description="one token a cell, or one for each channel of it"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        heads_of(self.width, self.heads)
        return self


def heads_of(width: int, heads: int | None) -> int:
    """How many there are at the finest level."""
    heads = heads or max(1, width // HEAD)
    if width % heads:
        raise UserError(f"heads {heads} does not divide width {width}; change either")
    return heads


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a level, which of their cells lie apart (0 or −∞), and the logarithms of distances within them."""

    tiling: Tiling
    mask: Float[Tensor, "windows 1 W W"] | None
    distances: Float[Tensor, "*twice d"]


@dataclass(frozen=True, eq=False)
class Level:
    """A level's windows, plain and shifted, and which cells one of the next level holds."""

    windows: tuple[Windows, Windows]
    halving: Tiling


class PdetUnet:
    """The architecture's body, and the tables it needs of a frame."""

    def __init__(
        self,
        frames: Mapping[str, Frame],
        *,
        width: int,
        levels: int = 3,
        window: int = 64,
        heads: int | None = None,
        expansion: float = 2.0,
        channels: Literal["mixed", "separate"] = "mixed",
    ) -> None:
        self.width, self.levels, self.window, self.expansion = width, levels, window, expansion
        self.heads = heads_of(width, heads)
        self.separate = channels == "separate"
        self.dimensions = sorted({frame.grid.dimension for frame in frames.values()})
        ladders = [self.ladder(frame) for frame in frames.values()]
        self.halvings = [sorted({tiling.size for tiling in level}) for level in zip(*ladders, strict=True)]

    def ladder(self, frame: Frame) -> list[Tiling]:
        """How the cells of each level are gathered into those of the next."""
        tilings, shape = [], frame.latent_shape
        for _ in range(self.levels):
            size = tuple(2 if cells >= SMALLEST else 1 for cells in shape)
            tilings.append(Tiling(shape, size, (0,) * len(shape), frame.boundary.periodic))
            shape = tilings[-1].tiles
        return tilings

    def body(self, depth: int) -> Ladder:
        return Ladder(self, depth)

    def block(self, level: int) -> UnetBlock:
        wider = 2**level
        return UnetBlock(self.width * wider, self.heads * wider, self.expansion, self.dimensions, self.separate)

    def tables(self, task: str, frame: Frame, put: Callable[[Tensor], Tensor]) -> tuple[Level, ...]:
        levels = []
        most = round(self.window ** (1 / frame.grid.dimension))
        for halving in self.ladder(frame):
            size = tuple(window_size(cells, max(1, most)) for cells in halving.shape)
            shift = tuple(w // 2 if w < cells else 0 for w, cells in zip(size, halving.shape, strict=True))
            windows = []
            for moved in ((0,) * len(size), shift):
                tiling = Tiling(halving.shape, size, moved, halving.periodic)
                apart = tiling.apart()
                mask = None if apart is None else put(torch.where(apart, -torch.inf, 0.0)[:, None])
                windows.append(Windows(tiling, mask, put(tiling.distances())))
            levels.append(Level((windows[0], windows[1]), halving))
        return tuple(levels)


class Ladder(nn.Module):
    """All stages, down and up again."""

    def __init__(self, architecture: PdetUnet, depth: int) -> None:
        super().__init__()
        levels, width, self.depth = architecture.levels, architecture.width, depth
        self.at = [*range(levels), *reversed(range(levels - 1))]
        self.stages = nn.ModuleList(nn.ModuleList(architecture.block(at) for _ in range(depth)) for at in self.at)
        steps = list(enumerate(architecture.halvings[:-1]))
        self.down = nn.ModuleList(Coarsen(width * 2**level, sizes) for level, sizes in steps)
        self.up = nn.ModuleList(Refine(width * 2**level, sizes) for level, sizes in steps)

    @property
    def modulated(self) -> list[int]:
        return [block.modulated for block in self._blocks()]

    def layers(self) -> list[nn.Module]:
        return [*self._blocks(), *self.down, *self.up]

    def matrices(self) -> list[nn.Parameter]:
        of_distances = {id(p) for block in self._blocks() for p in block.bias.parameters()}
        return [p for p in matrices_of([self]) if id(p) not in of_distances]

    def _blocks(self) -> list[UnetBlock]:
        return [block for stage in self.stages for block in stage]  # pyright: ignore[reportReturnType, reportGeneralTypeIssues]

    def forward(
        self, x: Float[Tensor, "B *latent D"], modulation: Sequence[Tensor], tables: tuple[Level, ...]
    ) -> Float[Tensor, "B *latent D"]:
        blocks, kept, last = iter(zip(self._blocks(), modulation, strict=True)), [], len(tables) - 1
        for place, level in enumerate(self.at):
            if 0 < place <= last:
                kept.append(x)
                x = self.down[level - 1](x, tables[level - 1].halving)
            elif place > last:
                x = self.up[level](x, kept.pop(), tables[level].halving)
            # Plain and shifted in turn; the way up goes on where the way down ended.
            for turn in range(self.depth):
                block, numbers = next(blocks)
                shifted = (turn + self.depth * (place > last)) % 2
                x = block(x, numbers, tables[level].windows[shifted])
        return x


class Attention(nn.Module):
    """Softmax attention among the tokens of a group, with normalised queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.query_scale = nn.Parameter(torch.ones(width // heads))
        self.key_scale = nn.Parameter(torch.ones(width // heads))
        self.mixed = nn.Linear(width, width)

    def forward(
        self,
        h: Float[Tensor, "*groups N D"],
        bias: Float[Tensor, "*windows heads N N"] | None,
        products: torch.dtype | None,
    ) -> Float[Tensor, "*groups N D"]:
        """`bias`: what is added to the logits, (heads, N, N), or of each group its own."""
        qkv = product(h, self.qkv.weight, None, products).unflatten(-1, (3, self.heads, -1)).transpose(-4, -2)
        q, k, v = qkv.unbind(-3)  # (*groups, heads, N, d)
        scales = self.query_scale / math.sqrt(q.shape[-1]), self.key_scale
        q, k = (
            (F.rms_norm(x.to(h.dtype), x.shape[-1:], eps=EPSILON) * scale).to(v.dtype)
            for x, scale in zip((q, k), scales, strict=True)
        )
        logits = (q @ k.mT).to(h.dtype)
        weights = (logits if bias is None else logits + bias).softmax(-1)
        heard = (weights.to(v.dtype) @ v).transpose(-3, -2).flatten(-2)
        return product(heard, self.mixed.weight, self.mixed.bias, products)


class DistanceBias(nn.Module):
    """A number for each head and distance, from a network of the distance's logarithms: rows for each dimension."""

    def __init__(self, heads: int, dimensions: Iterable[int]) -> None:
        super().__init__()
        self.rows = nn.ParameterDict({str(d): nn.Parameter(torch.randn(d, HIDDEN)) for d in dimensions})
        self.offset = nn.Parameter(torch.randn(HIDDEN))
        self.outer = nn.Parameter(torch.randn(HIDDEN, heads) / math.sqrt(HIDDEN))

    def forward(self, windows: Windows) -> Float[Tensor, "*windows heads W W"]:
        distances, size = windows.distances, windows.tiling.size
        numbers = F.silu(distances @ self.rows[str(len(size))] + self.offset) @ self.outer
        numbers = numbers.movedim(-1, 0)
        for axis, cells in enumerate(size, 1):
            numbers = numbers.unfold(axis, cells, 1)  # (i, o) ↦ distance number i + o
        numbers = numbers.flip(tuple(range(-len(size), 0)))  # o = w − 1 − j: number i − j + w − 1
        cells = math.prod(size)
        bias = numbers.reshape(-1, cells, cells)
        return bias if windows.mask is None else bias + windows.mask


class UnetBlock(nn.Module):
    """Attention within windows, among channels if they are separate, and a channel MLP; all conditioned."""

    compiled = True
    products: torch.dtype | None = None
    """The type that the factors of matrix products and attention are rounded to; None: not at all."""

    def __init__(self, width: int, heads: int, expansion: float, dimensions: Iterable[int], separate: bool) -> None:
        super().__init__()
        hidden = int(expansion * width)
        self.parts = 3 if separate else 2
        self.modulated = 3 * self.parts * width
        self.window = Attention(width, heads)
        self.bias = DistanceBias(heads, dimensions)
        self.channels = Attention(width, heads) if separate else None
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)

    def hear_window(self, h: Float[Tensor, "B *cells D"], windows: Windows) -> Float[Tensor, "B *cells D"]:
        tiling = windows.tiling
        tiles = tiling.divide(h.reshape(-1, *tiling.shape, h.shape[-1]))  # separate channels are samples here
        heard = self.window(tiles.flatten(1, -3), self.bias(windows), self.products)
        return tiling.join(heard.view(tiles.shape)).reshape(h.shape)

    def forward(
        self, x: Float[Tensor, "B *cells D"], modulation: Float[Tensor, "B N"], windows: Windows
    ) -> Float[Tensor, "B *cells D"]:
        shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (-1,)
        numbers = iter(modulation.view(shape).chunk(3 * self.parts, -1))
        shift, gain, gate = next(numbers), next(numbers), next(numbers)
        x = torch.addcmul(x, 1 + gate, self.hear_window(torch.addcmul(shift, _normalised(x), 1 + gain), windows))
        if self.channels is not None:
            shift, gain, gate = next(numbers), next(numbers), next(numbers)
            h = torch.addcmul(shift, _normalised(x), 1 + gain).movedim(1, -2)
            x = torch.addcmul(x, 1 + gate, self.channels(h, None, self.products).movedim(-2, 1))
        shift, gain, gate = next(numbers), next(numbers), next(numbers)
        h = torch.addcmul(shift, _normalised(x), 1 + gain)
        inner = F.silu(product(h, self.inner.weight, self.inner.bias, self.products))
        return torch.addcmul(x, 1 + gate, product(inner, self.outer.weight, self.outer.bias, self.products))


class Coarsen(nn.Module):
    """A cell of the next level from those that it holds; rows for each shape of such a group."""

    compiled = True
    products: torch.dtype | None = None

    def __init__(self, width: int, sizes: Iterable[tuple[int, ...]]) -> None:
        super().__init__()
        self.rows = nn.ParameterDict(
            {_name(size): nn.Parameter(_uniform(2 * width, width * math.prod(size))) for size in sizes}
        )
        self.bias = nn.Parameter(torch.zeros(2 * width))

    def forward(self, x: Float[Tensor, "B *cells D"], halving: Tiling) -> Float[Tensor, "B *coarse E"]:
        cells = halving.divide(_normalised(x).reshape(-1, *halving.shape, x.shape[-1])).flatten(-2)
        coarse = product(cells, self.rows[_name(halving.size)], self.bias, self.products).to(x.dtype)
        return coarse.view(*x.shape[: x.dim() - 1 - len(halving.size)], *coarse.shape[1:])


class Refine(nn.Module):
    """What a cell tells those that it holds, added to what they were."""

    compiled = True
    products: torch.dtype | None = None

    def __init__(self, width: int, sizes: Iterable[tuple[int, ...]]) -> None:
        super().__init__()
        self.rows = nn.ParameterDict(
            {_name(size): nn.Parameter(_uniform(width * math.prod(size), 2 * width)) for size in sizes}
        )
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(
        self, x: Float[Tensor, "B *coarse E"], kept: Float[Tensor, "B *cells D"], halving: Tiling
    ) -> Float[Tensor, "B *cells D"]:
        h = _normalised(x).reshape(-1, *halving.tiles, x.shape[-1])
        parts = product(h, self.rows[_name(halving.size)], None, self.products)
        cells = halving.join(parts.unflatten(-1, (math.prod(halving.size), -1)))
        return kept + self.bias + cells.reshape(kept.shape).to(kept.dtype)


def _normalised(x: Float[Tensor, "B *cells D"]) -> Float[Tensor, "B *cells D"]:
    return F.rms_norm(x, x.shape[-1:], eps=EPSILON)


def _name(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def _uniform(outputs: int, inputs: int) -> Float[Tensor, "O I"]:
    """Drawn as torch's linear layer draws its own."""
    bound = 1 / math.sqrt(inputs)
    return torch.empty(outputs, inputs).uniform_(-bound, bound)
