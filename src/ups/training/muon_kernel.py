"""Muon's whole update of a matrix as one kernel of Triton's: it fits into a GPU's processor, and never leaves it.

Five iterations on matrices of a hundred rows are fifteen products one after the other, each as short as its launch.
Here each matrix has a processor of its own that reads gradient, momentum and weights, iterates, and writes the last
two, in a tenth of the time. `Muon` has the formulas, and computes by torch's products what does not fit.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

COPIES = {"tf32": 2, "tf32x3": 6}
"""Of a matrix, its sides rounded up to powers of two, that a processor's own memory has to hold at most."""


def fits(matrices: Tensor) -> bool:
    """Whether they are float32 on a GPU that has these products, and memory enough for one of them."""
    if matrices.dtype != torch.float32 or matrices.device.type != "cuda" or torch.version.cuda is None:
        return False
    gpu = torch.cuda.get_device_properties(matrices.device)
    rows, columns = map(_padded, matrices.shape[-2:])
    room = COPIES[_precision()] * 4 * rows * columns <= gpu.shared_memory_per_block_optin
    return gpu.major >= 8 and room and builds(matrices.device)


@cache
def builds(device: torch.device) -> bool:
    """Whether Triton, which needs a C compiler, can build a kernel here: found out by building one."""
    matrix, number = torch.zeros(16, 16, device=device), torch.zeros((), device=device)
    constants = dict.fromkeys(("mu", "decay", "scale", "smallest", "a", "b", "c"), 1.0)
    try:
        update(matrix, matrix.clone(), matrix.clone(), number, None, **constants, ITERATIONS=1)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"Triton cannot build Muon's kernel ({reason}); torch's products compute the same, more slowly",
            stacklevel=2,
        )
        return False
    return True


def _padded(side: int) -> int:
    return max(16, triton.next_power_of_2(side))


def _precision() -> str:
    """Of products, as of torch's own: factors are rounded where that is allowed, else split into two rounded parts."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def update(
    weight: Tensor,
    momentum: Tensor,
    gradient: Tensor,
    rate: Tensor,
    skipped: Tensor | None,
    **constants: float,
) -> None:
    """One step of the contiguous matrices of a parameter, `(*batch, m, n)`, in place; nothing where `skipped` is 1."""
    rows, columns = weight.shape[-2:]
    sides = [(rows, columns), (columns, 1)]  # each with how far its neighbours are apart
    (short, by_short), (long, by_long) = sorted(sides, key=lambda side: side[0])
    m, n = _padded(short), _padded(long)
    kernel: Any = _update
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
        **constants,
        FLAGGED=skipped is not None,
        M=m,
        N=n,
        PRECISION=_precision(),
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
    PRECISION: tl.constexpr,
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
            gram = tl.dot(x, tl.trans(x), input_precision=PRECISION)
            polynomial = b * gram + c * tl.dot(gram, gram, input_precision=PRECISION)
            x = a * x + tl.dot(polynomial, x, input_precision=PRECISION)
        w = tl.load(weight + places, inside, 0.0)
        tl.store(weight + places, w - tl.load(rate) * (scale * x + decay * w), inside)
