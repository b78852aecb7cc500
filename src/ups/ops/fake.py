"""Programs run for their shapes: tensors without numbers, on ranks that do not exist.

    with fake_runtime(config, ranks=512, node=8) as runtime, Shapes():
        ...                                     # the real program: models, `parallelise`, `Step`

Torch's fake tensors know shape and type alone, and its `fake` process group answers every collective at once. Neither
has a public name yet: `torch._subclasses` and `torch.testing._internal` are to be replaced where torch gives them one
(`tests/ops/test_step_cost.py` fails with a torch that has moved them).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ups.distributed.faults.heartbeat import Heartbeat
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Ranks, Runtime, device_mesh

_SENDING_NOTHING = ("::wait_tensor", "::_wrap_tensor_autograd")
_COUNTING = {torch.ops.aten.arange.default, torch.ops.aten.arange.start, torch.ops.aten.arange.start_step}


class Shapes(FakeTensorMode):
    """Within, new tensors have no numbers. Tensors from outside keep theirs, and so do counts and whatever is computed
    from these alone: where points lie decides shapes. A number that is asked of a fake tensor is 1.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        fake = any(isinstance(tensor, FakeTensor) for tensor in given)
        if not fake and (given or func in _COUNTING):
            return func(*args, **(kwargs or {}))
        if fake and func is torch.ops.aten._local_scalar_dense.default and given[0].is_floating_point():
            return 1.0
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextmanager
def fake_runtime(config: RuntimeConfig, ranks: int, node: int) -> Iterator[Runtime]:
    """Rank 0 of `ranks`, of which `node` share a machine; on a CPU, whose steps have the shapes of a GPU's."""
    config = config.model_copy(update={"device": "cpu", "capture": "off", "compile": False})
    device = torch.device("cpu")
    who = Ranks(0, ranks, 0, min(node, ranks))
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        with patch.object(_fsdp_param, "_chunk_with_empty", _chunks):
            yield Runtime(config, who, device, 1, Heartbeat(None, 0, 0), mesh=device_mesh(config, who, device))
    finally:
        dist.destroy_process_group()


def _chunks(tensor: Tensor, count: int, dim: int) -> list[Tensor]:
    """What torch does, but the shards of ranks that have none are one tensor: it makes thousands, in minutes."""
    chunks = list(torch.chunk(tensor, count, dim=dim))
    return chunks + [tensor.new_empty(0)] * (count - len(chunks))


@dataclass
class Sent(TorchDispatchMode):
    """Adds up the bytes that collectives send, by ring algorithms over a group of g ranks: n (g - 1)/g for an
    all-gather or a reduce-scatter of n bytes, twice that for an all-reduce; within a node, and in groups beyond it.
    """

    node: int
    within: float = 0.0
    beyond: float = 0.0
    collectives: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again as the collectives that it stands for
        name = func._schema.name
        if name in ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_"):
            self._add(max(args[0].nbytes, args[1].nbytes), dist.ProcessGroup.unbox(args[2]))
        elif name == "c10d::allreduce_":
            self._add(2 * sum(tensor.nbytes for tensor in args[0]), dist.ProcessGroup.unbox(args[1]))
        elif name == "_c10d_functional::all_reduce":
            self._add(2 * args[0].nbytes, _resolve_process_group(args[2]))
        elif name == "_c10d_functional::all_gather_into_tensor":
            self._add(args[0].nbytes * args[1], _resolve_process_group(args[2]))
        elif name.split("::")[0] in ("c10d", "_c10d_functional") and not name.endswith(_SENDING_NOTHING):
            raise NotImplementedError(f"what does {name} send?")
        return func(*args, **(kwargs or {}))

    def _add(self, whole: float, group: Any) -> None:
        ranks = dist.get_process_group_ranks(group)
        count = whole * (len(ranks) - 1) / len(ranks)
        self.collectives += 1
        if ranks[-1] // self.node == ranks[0] // self.node:
            self.within += count
        else:
            self.beyond += count


class PeakBytes(TorchDispatchMode):
    """How many bytes the tensors hold that work within uses or makes, now and at `most`. `tensors` are there before."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self._sizes: dict[int, int] = {}
        for tensor in tensors:
            self._note(tensor.untyped_storage())

    def __enter__(self) -> PeakBytes:
        resize, held = torch.UntypedStorage.resize_, self

        def resized(storage: torch.UntypedStorage, size: int) -> Any:  # how FSDP frees what it has gathered
            done = resize(storage, size)
            held._note(storage)
            return done

        self._patched = patch.object(torch.UntypedStorage, "resize_", resized)
        self._patched.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patched.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.most = max(self.most, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
