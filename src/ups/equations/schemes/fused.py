"""Arithmetic on fields as one pass through memory: written once in torch, run as it stands on a CPU, fused on a GPU.

A flux is fifty operations on each face, and a GPU would read and write its memory for every one of them. The operations
are noted by `torch.fx` and handed as one function of numbers to CUDA's compiler, which comes with torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, fx
from torch.fx.proxy import GraphAppendingTracer

_TEXT: dict[Any, str] = {
    operator.add: "{0} + {1}",
    operator.sub: "{0} - {1}",
    operator.mul: "{0} * {1}",
    operator.truediv: "{0} / {1}",
    operator.neg: "-{0}",
    operator.gt: "{0} > {1}",
    operator.ge: "{0} >= {1}",
    operator.le: "{0} <= {1}",
    operator.and_: "{0} && {1}",
    torch.where: "{0} ? {1} : {2}",
    # What is not a number stays so, as in torch.
    torch.minimum: "({0} < {1} || {0} != {0}) ? {0} : {1}",
    torch.maximum: "({0} > {1} || {0} != {0}) ? {0} : {1}",
    torch.clamp: "{0} < {1} ? {1} : {0} > {2} ? {2} : {0}",
    "abs": "{0} < T(0) ? -{0} : {0}",
    "sqrt": "::sqrt({0})",
    "square": "{0} * {0}",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
}


def recordable(*tensors: Shaped[Tensor, "..."]) -> bool:
    """Whether what is computed from these may be fused or recorded: on a GPU, and not followed by autograd."""
    followed = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return tensors[0].is_cuda and not followed


def fused(function: Callable[..., Sequence[Tensor]]) -> Callable[..., tuple[Tensor, ...]]:
    """`function(*tensors, **constants)` of operations element by element, as one kernel where it can be.

    At most 8 tensors go in and 8 come out. Constants that are floats are handed to the kernel; any other is part of it,
    and another value makes another kernel.
    """

    @wraps(function)
    def call(*tensors: Tensor, **constants: Any) -> tuple[Tensor, ...]:
        if not recordable(*tensors):
            return tuple(function(*tensors, **constants))
        numbers = {name: value for name, value in constants.items() if isinstance(value, float)}
        fixed = tuple(item for item in constants.items() if item[0] not in numbers)
        made = _kernel(function, len(tensors), tuple(numbers), fixed)(*tensors, **numbers)
        return (made,) if isinstance(made, Tensor) else tuple(made)

    return call


@lru_cache(maxsize=256)
def _kernel(
    function: Callable[..., Sequence[Tensor]], inputs: int, numbers: tuple[str, ...], fixed: tuple[tuple[str, Any], ...]
) -> Callable[..., Any]:
    # This door to CUDA's compiler is private; where a torch lacks it, `torch.compile` of `function` takes its place.
    source, outputs = kernel_source(function, inputs, numbers, dict(fixed))
    return torch.cuda.jiterator._create_multi_output_jit_fn(source, outputs, **dict.fromkeys(numbers, 0.0))


def kernel_source(
    function: Callable[..., Sequence[Tensor]],
    inputs: int,
    numbers: Sequence[str] = (),
    fixed: dict[str, Any] | None = None,
) -> tuple[str, int]:
    """The function of one element in C++, `void fused(T x0, …, T number, …, T& out0, …)`, and the number of outputs."""
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    places = [fx.Proxy(graph.placeholder(f"x{i}"), tracer) for i in range(inputs)]
    given = {name: fx.Proxy(graph.placeholder(name), tracer) for name in numbers}
    outputs = function(*places, **given, **(fixed or {}))  # pyright: ignore[reportArgumentType]
    lines = [
        f"auto {node.name} = {_TEXT[node.target].format(*map(_number, node.args))};"
        for node in graph.nodes
        if node.op != "placeholder"
    ]
    lines += [f"out{i} = {_number(getattr(out, 'node', out))};" for i, out in enumerate(outputs)]
    names = [f"T {name}" for name in (*(f"x{i}" for i in range(inputs)), *numbers)]
    names += [f"T& out{i}" for i in range(len(outputs))]
    body = "\n    ".join(lines)
    return f"template <typename T> void fused({', '.join(names)}) {{\n    {body}\n}}\n", len(outputs)


def _number(value: Any) -> str:
    return value.name if isinstance(value, fx.Node) else f"T({float(value)!r})"
