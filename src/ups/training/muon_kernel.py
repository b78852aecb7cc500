"""Muon's whole update of a matrix as one kernel of Triton's: it fits into a GPU's processor, and never leaves it.

Five iterations on matrices of a hundred rows are fifteen products one after the other, each as short as its launch.
Here each matrix has a processor of its own that reads gradient, momentum and weights, iterates, and writes the last
two, in a tenth of the time. `Muon` has the formulas, and computes by torch's products what does not fit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float
from torch import Tensor

from ups import kernels
from ups.training.orthogonalise import ITERATIONS, QUINTIC, SMALLEST

COPIES = 2
"""Of a matrix, its sides rounded up to powers of two, that a processor's own memory has to hold at most."""


def fits(matrices: Float[Tensor, "*batch m n"]) -> bool:
    """Whether they are float32 on a GPU whose products may be rounded to tf32, and small and few enough."""
    allowed = torch.version.cuda is not None and torch.backends.cuda.matmul.fp32_precision == "tf32"
    if not allowed or matrices.device.type != "cuda" or matrices.dtype != torch.float32 or matrices.numel() >= 2**31:
        return False
    gpu = torch.cuda.get_device_properties(matrices.device)
    rows, columns = matrices.shape[-2:]
    needed = COPIES * 4 * _padded(rows) * _padded(columns)
    return gpu.major >= 8 and needed <= gpu.shared_memory_per_block_optin and builds(matrices.device, rows, columns)


@cache
def builds(device: torch.device, rows: int, columns: int) -> bool:
    """Whether Triton, which needs a C compiler, can build the kernel for such matrices: found out by building it."""
    weight, momentum, gradient = (torch.zeros(rows, columns, device=device) for _ in range(3))
    zero = torch.zeros((), device=device)
    what = f"Muon's kernel for {rows} x {columns} matrices"
    return kernels.builds(what, lambda: update(weight, momentum, gradient, zero, zero, 0.0, 0.0, 0.0))


def _padded(side: int) -> int:
    return max(16, triton.next_power_of_2(side))


def update(
    weight: Float[Tensor, "*batch m n"],
    momentum: Float[Tensor, "*batch m n"],
    gradient: Float[Tensor, "*batch m n"],
    rate: Float[Tensor, ""],
    skipped: Float[Tensor, ""] | None,
    mu: float,
    decay: float,
    scale: float,
) -> None:
    """One step of the contiguous matrices of a parameter, `(*batch, m, n)`, in place; nothing where `skipped` is 1."""
    rows, columns = weight.shape[-2:]
    sides = [(rows, columns), (columns, 1)]  # each with how far its neighbours are apart
    (short, by_short), (long, by_long) = sorted(sides, key=lambda side: side[0])
    m, n = _padded(short), _padded(long)
    kernel: Any = _update
    with torch.cuda.device_of(weight):
        kernel[(weight.numel() // (rows * columns),)](
            weight,
            momentum,
            gradient,
            rate,
            rate if skipped is None else skipped,
            short,
            long,
            by_short,
            by_long,
            mu,
            decay,
            scale,
            SMALLEST,
            *QUINTIC,
            ITERATIONS=ITERATIONS,
            FLAGGED=skipped is not None,
            M=m,
            N=n,
            num_warps=4 if m * n <= 64 * 128 else 8,
        )


@triton.jit
def _update(
    weight,
    momentum,
    gradient,
    rate,
    skipped,
    short,
    long,
    by_short,
    by_long,
    mu,
    decay,
    scale,
    smallest,
    a,
    b,
    c,
    ITERATIONS: tl.constexpr,
    FLAGGED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    go = True
    if FLAGGED:
        go = tl.load(skipped) == 0
    if go:
        rows = tl.arange(0, M)[:, None]
        columns = tl.arange(0, N)[None, :]
        inside = (rows < short) & (columns < long)
        places = tl.program_id(0) * short * long + rows * by_short + columns * by_long
        g = tl.load(gradient + places, inside, 0.0)
        before = tl.load(momentum + places, inside, 0.0)
        moved = before + (1 - mu) * (g - before)
        tl.store(momentum + places, moved, inside)
        x = moved + (1 - mu) * (g - moved)
        x = x / tl.maximum(tl.sqrt(tl.sum(x * x)), smallest)
        for _ in range(ITERATIONS):
            gram = tl.dot(x, tl.trans(x), input_precision="tf32")
            polynomial = b * gram + c * tl.dot(gram, gram, input_precision="tf32")
            x = a * x + tl.dot(polynomial, x, input_precision="tf32")
        w = tl.load(weight + places, inside, 0.0)
        tl.store(weight + places, w - tl.load(rate) * (scale * x + decay * w), inside)
