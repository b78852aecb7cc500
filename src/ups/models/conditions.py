"""What the model is told besides the fields: lead time, spacing, lengths, scale, boundary kinds, PDE parameters; and
what that does to its blocks.

Every condition is a named number. Its embedding is Σ_names table[name] · φ(signed log of the value): a row block per
name, so a new parameter adds rows and changes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

FLOOR = 1e-3
"""|value| at which the signed log turns from linear to logarithmic."""


def signed_log(value: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """asinh(v / 10⁻³) ≈ sign(v) ln(2|v| / 10⁻³): parameters span decades, may be negative, and may pass zero."""
    return torch.asinh(value / FLOOR)


def features(value: Float[Tensor, "B N"]) -> Float[Tensor, "B N 6"]:
    """Smooth, low-frequency features of the signed log, so that unseen values lie between seen ones."""
    s = signed_log(value)
    return torch.stack([torch.ones_like(s), s / 4, torch.sin(s / 2), torch.cos(s / 2), torch.sin(s), torch.cos(s)], -1)


class ConditionEmbedding(nn.Module):
    """Named numbers → one vector per sample."""

    compiled = True

    def __init__(self, names: Iterable[str], width: int) -> None:
        super().__init__()
        self.rows = nn.ParameterDict({name: nn.Parameter(torch.randn(6, width) * 0.4) for name in sorted(set(names))})
        self.mix = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, values: Mapping[str, Float[Tensor, " B"]]) -> Float[Tensor, "B D"]:
        names = sorted(values)
        stacked = features(torch.stack([values[name] for name in names], -1)).flatten(1)
        return self.mix(stacked @ torch.cat([self.rows[name] for name in names]))


class Modulation(nn.Module):
    """The vector of conditions → the numbers that gains, shifts and gates of each block add to 1 or 0: none at first.

    One product for all blocks of as many numbers: by themselves these are so small that launching them takes longer
    than computing them.
    """

    compiled = True

    def __init__(self, width: int, numbers: Sequence[int]) -> None:
        """`numbers` of each block."""
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(width, n) for n in numbers)
        self.biases = nn.ParameterList(torch.zeros(n) for n in numbers)
        self.alike = [[i for i, n in enumerate(numbers) if n == size] for size in dict.fromkeys(numbers)]

    def forward(self, conditions: Float[Tensor, "B D"]) -> tuple[Float[Tensor, "B _"], ...]:
        """A block's numbers each."""
        # [*self.weights] would do, but not in torch 2.11's compiler.
        all_weights, all_biases = list(self.weights), list(self.biases)
        found: dict[int, Tensor] = {}
        for blocks in self.alike:
            weights, biases = (torch.stack([own[i] for i in blocks]) for own in (all_weights, all_biases))
            own = torch.baddbmm(biases[:, None], conditions.expand(len(weights), *conditions.shape), weights)
            found.update(zip(blocks, own.unbind(), strict=True))
        return tuple(found[i] for i in range(len(found)))
