"""What stands between stem and head: blocks on latents, each modulated by the conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ups.models.network import matrices_of


class Stack(nn.ModuleList):
    """Blocks one after another, all on the same latents; each says by how many numbers it is `modulated`."""

    @property
    def modulated(self) -> list[int]:
        return [block.modulated for block in self]  # pyright: ignore[reportReturnType]

    def layers(self) -> list[nn.Module]:
        return list(self)

    def matrices(self) -> list[nn.Parameter]:
        return matrices_of(self)

    def forward(
        self, x: Float[Tensor, "B *latent D"], modulation: Sequence[Tensor], tables: Any
    ) -> Float[Tensor, "B *latent D"]:
        for block, numbers in zip(self, modulation, strict=True):
            x = block(x, numbers, tables)
        return x
