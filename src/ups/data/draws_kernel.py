"""Normal numbers of `Draws` as one kernel of Triton's: a hundred short operations, one after the other, take a GPU
longer than a block's products. The words are the same; so are the numbers, but for the last bit of float64 that is
rounded away.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float, Int
from torch import Tensor

NAME = "the kernel of normal numbers"
BLOCK = 256
_MASK32 = (1 << 32) - 1


def normal(start: int, step: Int[Tensor, ""], slots: Int[Tensor, " B"], size: int) -> Float[Tensor, "B size"]:
    out = torch.empty(len(slots), size, device=slots.device)
    pairs = (size + 1) // 2
    words = [start & _MASK32, start >> 32]
    low, high = (word - (1 << 32) if word >> 31 else word for word in words)  # as signed numbers of 32 bits
    kernel: Any = _normal
    with torch.cuda.device_of(slots):
        kernel[(len(slots), triton.cdiv(pairs, BLOCK))](
            slots, step, out, low, high, size, pairs, TURN=2.0 * math.pi * 2.0**-32, BLOCK=BLOCK
        )
    return out


def try_out(device: torch.device) -> None:
    normal(1 << 40, torch.zeros((), dtype=torch.int64, device=device), torch.arange(2, device=device), 3)


@triton.jit
def _scramble(x):
    x = x ^ (x >> 17)
    x = x * 0xED5AD4BB
    x = x ^ (x >> 11)
    x = x * 0xAC4C1B51
    x = x ^ (x >> 15)
    x = x * 0x31848BAB
    return x ^ (x >> 14)


@triton.jit
def _key(sample, step, low, high, lane: tl.constexpr):
    state = _scramble((sample.to(tl.uint32) + lane) ^ low)
    state = _scramble(state + (sample >> 32).to(tl.uint32) + high)
    state = _scramble(state + step.to(tl.uint32))
    return _scramble(state + (step >> 32).to(tl.uint32))


@triton.jit(do_not_specialize=["low", "high", "size", "pairs"])
def _normal(slots, step, out, low, high, size, pairs, TURN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    sample, number = tl.load(slots + row), tl.load(step)
    low, high = low.to(tl.uint32), high.to(tl.uint32)
    key = _key(sample, number, low, high, 0)
    offset = _key(sample, number, low, high, 0x9E3779B9)
    first = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    second = first + pairs
    one = _scramble(_scramble(first.to(tl.uint32) ^ key) + offset).to(tl.float64)
    other = _scramble(_scramble(second.to(tl.uint32) ^ key) + offset).to(tl.float64)
    radius = tl.sqrt(-2.0 * tl.log((one + 0.5) * 2.3283064365386963e-10))
    angle = other * TURN
    tl.store(out + row * size + first, (radius * tl.cos(angle)).to(tl.float32), first < pairs)
    tl.store(out + row * size + second, (radius * tl.sin(angle)).to(tl.float32), (first < pairs) & (second < size))
