"""Functions of tensors as lists of operations that a page computes by itself: `page/tensors.js` knows the same ones.

    programs = Programs()
    step = programs.trace(lambda history: model(history), history)     # plain words and numbers, for JSON
    programs.arrays                                                     # the constants of all of them, by name

A function is run once, and what it computes is written down, operation by operation. An operation is
[name, arguments, shape, type]: an argument {"of": i} is the result of operation i, where the inputs come first.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from ups.errors import UserError

# As `page/tensors.js` groups them.
SAME = "_to_copy _unsafe_view alias clone contiguous detach lift_fresh lift_fresh_copy reshape view view_as"
MOVED = "expand flip getitem permute select slice split split_with_sizes squeeze t transpose unbind unfold unsqueeze"
FILLED = "full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like"
BY_POINT = (
    "abs add addcmul asinh bitwise_and bitwise_not clamp clamp_max clamp_min cos div eq exp ge gt isfinite le log "
    "logical_and logical_not lt maximum minimum mul ne neg pow reciprocal relu rsqrt sigmoid silu sin sqrt sub tanh "
    "where"
)
SUMMED = "_safe_softmax _softmax all amax amin any logsumexp mean native_layer_norm sum"
JOINED = "addmm baddbmm bmm cat mm roll stack"
OPERATIONS = frozenset(" ".join((SAME, MOVED, FILLED, BY_POINT, SUMMED, JOINED)).split())
"""What a program may consist of."""
NOT_SAID = frozenset(
    ("dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking", "implicit", "half_to_float")
)
"""Arguments that say nothing a page needs: the types of results are told with them."""
TYPES = {torch.float32: "f4", torch.float64: "f8", torch.int64: "f8", torch.int32: "f8", torch.bool: "u1"}


class Programs:
    """Programs that share their constants: float32 ones are `arrays`, the few others stand in the programs. Their
    products of matrices are `products` of numbers, all together.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.products = 0
        self._names: dict[tuple, str] = {}

    def trace(self, function: Callable[..., Any], *examples: Shaped[Tensor, "..."]) -> dict[str, Any]:
        """What `function` computes of tensors shaped as the examples: a tensor, or several."""
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            function(*examples)  # makes the tables that models keep, which the program then holds
            traced = make_fx(function)(*examples)
        places: dict[Node, int] = {}
        operations: list[Any] = []
        for node in traced.graph.nodes:
            if node.op == "output":
                ends = node.args[0] if isinstance(node.args[0], list | tuple) else [node.args[0]]
                return {"inputs": len(examples), "operations": operations, "outputs": [places[end] for end in ends]}
            if node.op == "placeholder":
                places[node] = len(places)
                continue
            places[node] = len(places)
            if node.op == "get_attr":
                operations.append(self._constant(getattr(traced, node.target).detach()))
            else:
                operations.append(self._operation(node, places))
        raise AssertionError("a graph ends with its output")

    def _constant(self, value: Tensor) -> list[Any]:
        array, kind = value.cpu().contiguous().numpy(), TYPES[value.dtype]
        if kind != "f4":
            return ["constant", [_plain(array.astype(float).ravel().tolist())], list(array.shape), kind]
        key = (array.shape, hashlib.sha256(array.tobytes()).digest())
        name = self._names.setdefault(key, str(len(self._names)))
        self.arrays[name] = array
        return ["constant", [name], list(array.shape), kind]

    def _operation(self, node: Node, places: dict[Node, int]) -> list[Any]:
        target: Any = node.target
        name = "getitem" if target is operator.getitem else str(target).split(".")[1]
        if name.endswith("_") and _alone(node.args[0]):
            name = name[:-1]
        if name not in OPERATIONS:
            raise UserError(f"the model computes {name}, which a page cannot; serve it with `ups serve` instead")
        given = list(node.args)
        if target is not operator.getitem:
            schema = target._schema.arguments
            given += [node.kwargs.get(each.name, each.default_value) for each in schema[len(given) :]]
            given = [value for value, each in zip(given, schema, strict=True) if each.name not in NOT_SAID]
        made = node.meta["val"]
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            left: Any = node.args[0 if name in ("mm", "bmm") else 1]
            self.products += made.numel() * left.meta["val"].shape[-1]
        shape, kind = (list(made.shape), TYPES[made.dtype]) if isinstance(made, Tensor) else (None, None)
        return [name, _plain(given, places), shape, kind]


def _alone(value: Any) -> bool:
    """Whether nothing else reads the memory of a result: then it does not matter that it is overwritten."""
    if not isinstance(value, Node) or value.op != "call_function" or len(value.users) > 1:
        return False
    return value.target is not operator.getitem and str(value.target).split(".")[1] not in f"{SAME} {MOVED}".split()


def _plain(value: Any, places: dict[Node, int] | None = None) -> Any:
    if isinstance(value, Node):
        return {"of": (places or {})[value]}
    if isinstance(value, list | tuple):
        return [_plain(each, places) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")}
    if value is None or isinstance(value, bool | int | float):
        return value
    raise UserError(f"the model computes with {value!r}, which a page cannot; serve it with `ups serve` instead")
