"""Kernels of our own, by Triton, which comes with torch for GPUs only and needs a C compiler: where they can be used.

A module of kernels has a `NAME`, for who is told that they cannot be built, and `try_out(device)`, which launches each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ups.distributed.vote import is_out_of_memory

try:  # not by looking for it: a folder of that name would be found too
    import triton.language  # noqa: F401  # pyright: ignore[reportMissingImports]

    INSTALLED = True
except ImportError:
    INSTALLED = False
LARGEST = 2**27
"""Numbers of a tensor, so that places in one of eight times as many channels are counted in 32 bits."""


def usable(kernels: ModuleType | None, like: Tensor) -> ModuleType | None:
    """The kernels, if they can be used where this tensor is. Who counts, traces or compiles torch's operations would
    not see them, and gets none.
    """
    if kernels is None or not like.is_cuda or torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return None
    return kernels if like.numel() < LARGEST and _built(kernels, like.device) else None


def differentiable(kernels: ModuleType | None, like: Tensor) -> ModuleType | None:
    """The same where gradients of a float32 tensor are asked for: these kernels give first ones, and nothing else."""
    return usable(kernels, like) if like.requires_grad and like.dtype == torch.float32 else None


@cache
def _built(kernels: ModuleType, device: torch.device) -> bool:
    return builds(kernels.NAME, lambda: kernels.try_out(device))


def builds(what: str, trial: Callable[[], object]) -> bool:
    """Whether Triton builds what `trial` launches, found out by doing so; where not, a warning says why."""
    try:
        trial()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"Triton cannot build {what} ({reason}); torch's operations compute the same, more slowly", stacklevel=2
        )
        return False
    return True
