"""From a plain module to one that trains on many ranks, applied from the outside in one function.

    optimiser = parallelise(model, runtime, precision, build_optimiser)

`ddp`: every rank has all parameters; local gradients are summed by one bucketed reduction. `fsdp2`: parameters,
gradients and moments are sharded over all ranks, block by block. `hsdp`: sharded within groups of ranks, replicated
over them. The optimiser is built here, last: one that was built before sharding trains nothing and says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard
from torch.utils.checkpoint import checkpoint

from ups.distributed.runtime.start import Runtime
from ups.distributed.vote import is_out_of_memory
from ups.errors import UserError

Optimiser = TypeVar("Optimiser", bound=torch.optim.Optimizer)

BUCKET = 32 * 2**20
"""Bytes of gradients that are reduced at once."""
RECOMPILATIONS = 64
"""Of one part's code, at most, for each task: grids, micro-batches and their halves, with gradients and without."""


def parallelise(
    model: nn.Module,
    runtime: Runtime,
    precision: str,
    build: Callable[[nn.Module], Optimiser],
) -> Optimiser:
    """Mixed precision, activation checkpointing, compilation, sharding, optimiser: in this order."""
    config = runtime.config
    for block in blocks(model):
        if precision == "bfloat16":
            # Which of its products that is, a block says itself.
            block.products = torch.bfloat16  # pyright: ignore[reportArgumentType]
        if config.checkpoint_activations:
            # On the instance: names of parameters and hooks of the module stay as they are.
            block.forward = _recomputed(block.forward)
    if config.compile:
        compile_parts(model)
    if runtime.mesh is not None:
        mesh = runtime.mesh if config.strategy == "hsdp" else runtime.mesh["dp_shard"]
        place = _placement(runtime.mesh["dp_shard"].size())
        for block in blocks(model):
            fully_shard(block, mesh=mesh, shard_placement_fn=place)
        # The root too is resharded after the forward pass, or averages swapped in for validation would stay in use.
        fully_shard(model, mesh=mesh, reshard_after_forward=True, shard_placement_fn=place)
        for method in getattr(model, "computed_by", ()):  # of a module that is not called itself
            register_fsdp_forward_method(model, method)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # losses are sums over the global count already
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other, and the same sum is wanted on NCCL
    return build(model)


@contextmanager
def enough_memory(device: torch.device, attempt: int) -> Iterator[None]:
    """Within, memory that runs out is the user's to find, not a bug: nothing has been trained yet.

    After a restart it may be what died that still holds the memory: that is raised as it is, and tried again.
    """
    try:
        yield
    except Exception as error:
        if attempt or not is_out_of_memory(error):
            raise
        free = (
            f"{torch.cuda.mem_get_info(device)[0] / 2**30:.1f} GiB are free"
            if device.type == "cuda"
            else "none is free"
        )
        raise UserError(
            f"the model, its optimiser and its data do not fit on {device}, where {free}: see what else runs there, "
            "choose a smaller operator, or share it out over several GPUs (runtime.strategy=fsdp2)"
        ) from error


def _placement(ranks: int) -> Callable[[nn.Parameter], Shard | None]:
    """Along which axis a parameter is cut: the first, as is usual, unless only a longer one divides evenly.

    A table of 32 modes cut into 64 parts along its first axis would be half padding, held and sent all the same.
    """

    def place(parameter: nn.Parameter) -> Shard | None:
        if parameter.shape[0] % ranks == 0:
            return None
        even = [axis for axis, length in enumerate(parameter.shape) if length % ranks == 0]
        return Shard(max(even, key=lambda axis: parameter.shape[axis])) if even else None

    return place


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts that a module says are recomputed and sharded one by one (`models.network.Layered`); else none."""
    if not hasattr(model, "layers"):
        return []
    return list(model.layers())  # pyright: ignore[reportCallIssue, reportArgumentType]


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """An integer that replicas share exactly when their bits are (almost surely) the same: a sum of words, wrapping."""
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    total = torch.zeros((), dtype=torch.int64)
    for number, tensor in enumerate(tensors):
        part = local(tensor.detach()).contiguous()
        total = total.to(part.device)
        total = total * 31 + part.view(words[part.element_size()]).sum(dtype=torch.int64) + number
    return total


def replicas_agree(tensors: Iterable[Tensor], runtime: Runtime) -> bool:
    """Whether the ranks that should hold the same numbers do; the same answer on every rank."""
    if runtime.size == 1:
        return True
    value = fingerprint(tensors)
    ends = torch.stack([value, -value])
    dist.all_reduce(ends, dist.ReduceOp.MAX, group=runtime.mesh and runtime.mesh.get_group("dp_replicate"))
    differ = (ends[0] + ends[1] != 0).long()
    dist.all_reduce(differ, dist.ReduceOp.MAX)
    return not differ.item()


@torch.no_grad()
def reduce_gradients(of_tasks: Iterable[Sequence[Tensor | None]], runtime: Runtime) -> None:
    """Every gradient of every task becomes the sum over ranks, in flat buckets; sharded ones are sums already.

    One that a step did not touch is None on all ranks, and stays so: to the optimiser, no gradient and a gradient of
    zero are different things.
    """
    if runtime.inject_fault("reduce") == "skip" or runtime.mesh is not None or runtime.size == 1:
        return
    buckets: list[list[Tensor]] = [[]]
    for gradient in (gradient for gradients in of_tasks for gradient in gradients if gradient is not None):
        if buckets[-1] and sum(g.nbytes for g in buckets[-1]) + gradient.nbytes > BUCKET:
            buckets.append([])
        buckets[-1].append(gradient)
    flat = [torch.cat([gradient.flatten() for gradient in bucket]) for bucket in buckets]
    works = [dist.all_reduce(bucket, async_op=True) for bucket in flat]
    for bucket, summed, work in zip(buckets, flat, works, strict=True):
        if work is not None:
            work.wait()
        parts = [part.view_as(g) for part, g in zip(summed.split([g.numel() for g in bucket]), bucket, strict=True)]
        torch._foreach_copy_(bucket, parts)  # pyright: ignore[reportPrivateImportUsage]


def compile_parts(model: nn.Module) -> None:
    """Compile the parts that say of themselves that it makes them faster, each for every shape it meets. Past torch's
    limit of shapes they would go on eagerly and say nothing, so the limit is far away, and reaching it is an error.
    """
    limit = RECOMPILATIONS * max(1, len(getattr(model, "tasks", ())))
    torch._dynamo.config.recompile_limit = limit
    torch._dynamo.config.accumulated_recompile_limit = 64 * limit
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for part in model.modules():
        if getattr(part, "compiled", False):
            part.compile()


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keeps a block's inputs only, and computes the rest again when gradients are asked for."""

    def recomputed(*inputs: Any) -> Tensor:
        # Blocks draw nothing at random, and the generator's state must not be asked for while a graph is captured.
        result = checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(result, Tensor)
        return result

    return recomputed
