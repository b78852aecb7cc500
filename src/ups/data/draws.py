"""All randomness of a training step: pure in (seed, stage, step, place in the batch, name of the stream).

    draws.normal("noise", (1, 128, 2))        # (B, 1, 128, 2), the same for any split over ranks and micro-batches
    draws.uniform("time", ())                 # (B,)

Two streams of one shape differ, and nothing is remembered from draw to draw, so there is no generator state to save.
Only torch operations on the device, so draws can be captured in a CUDA graph, whose replay finds its step in a tensor.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.sampler import mix
from ups.kernels import INSTALLED, usable

if INSTALLED:
    from ups.data import draws_kernel
else:
    draws_kernel = None

_MASK32 = (1 << 32) - 1


@dataclass(frozen=True, eq=False)
class Draws:
    """What one micro-batch draws in `step`; `slots` are its samples' places in the global batch, on the device."""

    seed: int
    stage: str
    step: Int[Tensor, ""]
    slots: Int[Tensor, " B"]

    def normal(self, stream: str, shape: Sequence[int]) -> Float[Tensor, "B *shape"]:
        """Standard normal numbers, float32. Two hashes w₁, w₂ of a pair's number give two, by Box and Muller's formula,

            r = √(−2 ln((w₁ + ½) / 2³²)),   z = r cos(2π w₂ / 2³²),   z' = r sin(2π w₂ / 2³²).

        Logarithm and cosine are taken in float64 and rounded once: in float32 their last bit can depend on the device,
        and on where in a vector register an element falls, and then a split batch would differ from the whole.
        """
        size = math.prod(shape)
        if (kernel := usable(draws_kernel, self.slots)) is not None:
            step = self.step.to(self.slots.device)
            return kernel.normal(self._start(stream), step, self.slots, size).view(len(self.slots), *shape)
        pairs = (size + 1) // 2
        words = self._words(stream, 2 * pairs).double()
        first, second = words[:, :pairs], words[:, pairs:]
        radius = torch.sqrt(-2.0 * torch.log((first + 0.5) * 2.0**-32))
        angle = second * (2.0 * math.pi * 2.0**-32)
        numbers = torch.cat((radius * torch.cos(angle), radius * torch.sin(angle)), 1)[:, :size]
        return numbers.float().reshape(len(self.slots), *shape)

    def uniform(self, stream: str, shape: Sequence[int]) -> Float[Tensor, "B *shape"]:
        """Numbers in (0, 1), float32: (w + ½) / 2²⁴ of a hash's upper 24 bits, so that rounding never gives 1."""
        words = self._words(stream, math.prod(shape)) >> 8
        return ((words.double() + 0.5) * 2.0**-24).float().reshape(len(self.slots), *shape)

    def _words(self, stream: str, count: int) -> Int[Tensor, "B count"]:
        step = self.step.to(self.slots.device)
        key, offset = _keys(self._start(stream), step, self.slots)[..., None]
        counter = torch.arange(count, dtype=torch.int64, device=self.slots.device) & _MASK32
        return _scramble((_scramble(counter ^ key) + offset) & _MASK32)

    def _start(self, stream: str) -> int:
        return mix(self.seed, zlib.crc32(self.stage.encode()), zlib.crc32(stream.encode()))


def _scramble(x: Int[Tensor, " ..."]) -> Int[Tensor, " ..."]:
    """A bijection of 32-bit words, held in int64, in which every input bit flips about half of the output bits.

    Multipliers above 2³¹ are given as their negative residue modulo 2³², so that no product leaves int64: overflow is
    undefined in C++, and the low 32 bits are the same.
    """
    x = x ^ (x >> 17)
    x = (x * (0xED5AD4BB - (1 << 32))) & _MASK32
    x = x ^ (x >> 11)
    x = (x * (0xAC4C1B51 - (1 << 32))) & _MASK32
    x = x ^ (x >> 15)
    x = (x * 0x31848BAB) & _MASK32
    return x ^ (x >> 14)


def _keys(start: int, step: Int[Tensor, ""], ids: Int[Tensor, " B"]) -> Int[Tensor, " 2 B"]:
    """Two 32-bit hashes of (start, step, id) that collide independently, from all 64 bits of each."""
    lane = torch.arange(2, dtype=torch.int64, device=ids.device)[:, None]
    state = _scramble(((ids + lane * 0x9E3779B9) & _MASK32) ^ (start & _MASK32))
    for word in ((ids >> 32) + (start >> 32), step, step >> 32):
        state = _scramble((state + word) & _MASK32)
    return state
