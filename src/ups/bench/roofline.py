"""Both sides of the roofline: what the machine can do, and what a training step computes and moves.

The machine's ceilings, the rate of a large matrix product and of a copy, are measured in the same run. A step is
counted operation by operation while it runs once, eagerly:

FLOP: torch's own formulas (`torch.utils.flop_counter`) of products, convolutions and attention, a multiplication and an
addition counting two; four times as many where numbers are complex; 5 n log₂ n for a complex Fourier transform of n
numbers and half of that for a real one. Pointwise work is not counted, as is the custom.

A step that is compiled, or has kernels of its own (Muon's), is counted as the torch operations it computes.

Bytes, in two ways:
- `moved`: every operation reads its inputs and writes its outputs, as kernels that are not fused do. A tensor counts
  as many bytes as its storage holds, so what is broadcast counts once; views are free.
- `least`: what no way to run the step can avoid: weights read by both passes, gradients written and read by the
  clipping and by the optimiser, weights and the optimiser's moments read and written, and what is kept for the backward
  pass written and read once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
_CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
}
"""Torch has formulas for a GPU's attention only; a CPU's computes the same."""
_MOVES_NOTHING = (aten.empty, aten.empty_like, aten.new_empty_strided, aten.detach, aten._unsafe_view)
"""Allocations, and views whose schema does not say so."""
_FFT = {aten._fft_r2c: 0.5, aten._fft_c2r: 0.5, aten._fft_c2c: 1.0}
_SIDE = {"cpu": 1536, "cuda": 8192}
_COPY = {"cpu": 2**27, "cuda": 2**31}
_REPEATS = {"cpu": 2, "cuda": 20}
_BLOCKS = 5


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s of a matrix product by precision, bytes/s of a copy (read and write both counted)."""

    matmul: dict[str, float]
    bandwidth: float
    used: str
    """The precision that single-precision products have in this run: fp32, or tf32 where torch was told so."""

    def roofline(self, flop: float, moved: float) -> float:
        """Seconds that the arithmetic or the traffic takes at least: max(FLOP / rate, bytes / bandwidth)."""
        return max(flop / self.matmul[self.used], moved / self.bandwidth)


def measure(device: torch.device) -> Ceilings:
    """The best of a few blocks, for each precision that the device is used with."""
    side = _SIDE[device.type]
    rates = {}
    used = single_precision(device)
    for name, dtype in ((used, torch.float32), ("bf16", torch.bfloat16)):
        if name == "bf16" and device.type == "cpu":
            continue
        a = torch.randn(side, side, device=device, dtype=dtype)
        b = torch.randn(side, side, device=device, dtype=dtype)
        rates[name] = 2 * side**3 / best_seconds(lambda a=a, b=b: a @ b, device)
    source = torch.zeros(_COPY[device.type], dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    seconds = best_seconds(lambda: target.copy_(source), device)
    return Ceilings(rates, 2 * source.numel() / seconds, used)


def single_precision(device: torch.device) -> str:
    tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if tf32 else "fp32"


def best_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Of one call, in the fastest of a few blocks: what the device can do, not what it happened to."""
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return min(timer.timeit(_REPEATS[device.type]).mean for _ in range(_BLOCKS))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Counts:
    """Of one step: FLOP, bytes moved, bytes kept for the backward pass, of all trained numbers, and of what the
    optimiser keeps of them (twice as much in AdamW, as much in Muon).
    """

    flop: float
    moved: int
    kept: int
    parameters: int
    moments: int

    @property
    def least(self) -> int:
        """Weights read twice and updated (2), gradients 3 times; moments updated (2); 2 times what is kept."""
        return 7 * self.parameters + 2 * self.moments + 2 * self.kept


def count_step(step: Callable[[], Any], model: nn.Module, optimiser: torch.optim.Optimizer) -> Counts:
    """Run `step` (forward, backward, update by `optimiser`) once and count."""
    kept: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = max(kept.get(place, 0), _bytes(tensor))
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor), Counting() as counting:
        step()
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    moments = sum(tensor.nbytes for tensor in _tensors(list(optimiser.state.values())) if tensor.dim())
    return Counts(counting.flop, counting.moved, sum(kept.values()), trained, moments)


class Counting(TorchDispatchMode):
    """Within, every operation adds its FLOP and the bytes it reads and writes; views are no operations."""

    def __init__(self) -> None:
        super().__init__()
        self.flop, self.moved, self.operations = 0.0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again as the parts that this rank has
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.flop += flop_of(func, args, kwargs, out)
        if not _is_view(func):
            inputs, outputs = _tensors((args, kwargs)), _tensors((out, list(_written(func, args, kwargs))))
            self.moved += sum(map(_bytes, [*inputs, *outputs]))
            self.operations += 1
        return out


def flop_of(func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> float:
    packet = _CPU_ATTENTION.get(func._overloadpacket, func._overloadpacket)
    if packet in _FFT:
        source, axes = args[0], args[1]
        large = out if packet is aten._fft_c2r else source
        length = math.prod(large.shape[axis] for axis in axes)
        return _FFT[packet] * 5 * large.numel() * math.log2(max(length, 2))
    if packet not in flop_registry:
        return 0.0
    complex_numbers = any(t.is_complex() for t in _tensors(args))
    return float(flop_registry[packet](*args, **kwargs, out_val=out)) * (4 if complex_numbers else 1)


def _tensors(tree: Any) -> list[Tensor]:
    """Every tensor once."""
    return list({id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


def _is_view(func: Any) -> bool:
    """Whether the result is another look at the same numbers (or nothing but an allocation)."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    return any(a and not a.is_write for a in aliases) or func._overloadpacket in _MOVES_NOTHING


def _written(func: Any, args: tuple, kwargs: dict[str, Any]) -> Iterable[Tensor]:
    """The inputs that the operation changes in place."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name) if argument.name in kwargs or place >= len(args) else args[place]
            yield from _tensors(value)


def _bytes(tensor: Tensor) -> int:
    """At most what its storage holds: a broadcast tensor is read once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
