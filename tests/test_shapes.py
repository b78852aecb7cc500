"""Shapes in signatures are true: a call that breaks one fails in tests, on ranks too, and no tensor goes without."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from ups.fields import Grid
from ups.training.losses import LossParts, relative_error

SOURCE = Path(__file__).parents[1] / "src" / "ups"
ARRAYS = {"Tensor", "torch.Tensor", "ndarray", "np.ndarray"}
# Beside the flow, tensors are bytes to save, sum or send: any shape is right.
BESIDE = {"distributed", "track"}
# What a user gives comes in many shapes, and a wrong one is refused with a sentence.
GIVEN = {"Simulator.rollout", "Simulator.question", "Simulator.assimilate", "RemoteSimulator.rollout"}
# Asked only for its device and precision.
LIKE = "like"


def refused() -> str:
    """What the loss says of two batches of different size, which broadcasting would have taken."""
    with pytest.raises(jaxtyping.TypeCheckError) as caught:
        relative_error(torch.zeros(1, 8, 1), torch.zeros(4, 8, 1))
    return str(caught.value)


def test_a_call_with_a_wrong_shape_fails():
    assert "ups.training.losses.relative_error" in refused()


def test_a_call_with_a_wrong_shape_fails_on_a_rank():
    assert "ups.training.losses.relative_error" in run_ranks(1, refused)[0]


def test_a_dataclass_with_a_wrong_shape_fails():
    with pytest.raises(jaxtyping.TypeCheckError):
        LossParts(torch.zeros(3), {"step_1": torch.zeros(4)})
    with pytest.raises(jaxtyping.TypeCheckError):
        Grid((torch.zeros(4, 1),), ((0.0, 1.0),))


def test_every_shape_can_be_read():
    """jaxtyping takes one that cannot, such as "*B T *space", for Any, without a word."""
    names = vars(jaxtyping) | {"Tensor": Tensor, "torch": torch, "np": np, "ndarray": np.ndarray}
    problems = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) and is_shape(node):
                try:
                    eval(ast.unparse(node), names)
                except Exception as error:
                    problems.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}: {error}")
    assert not problems, "\n".join(problems)


def test_public_functions_say_the_shape_of_every_tensor():
    bare = [
        f"{path.relative_to(SOURCE)}:{argument.lineno}: {name}({ast.unparse(argument)})"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in BESIDE
        for name, function in public(ast.parse(path.read_text()))
        if name not in GIVEN
        for argument in arguments(function)
        if argument.arg != LIKE and argument.annotation is not None and is_bare(argument.annotation)
    ]
    assert not bare, "\n".join(bare)


def test_a_bare_tensor_is_seen():
    found = ast.parse('def f(a: Tensor | None, b: Mapping[str, np.ndarray], c: Float[Tensor, "B"], *d: Tensor): ...')
    [(_, function)] = public(found)
    assert [argument.arg for argument in arguments(function) if is_bare(argument.annotation)] == ["a", "b", "d"]


def is_shape(node: ast.Subscript) -> bool:
    """Whether it is Float[Tensor, ...] or one of its kin."""
    kind = getattr(jaxtyping, ast.unparse(node.value), None)
    return isinstance(node.slice, ast.Tuple) and isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractDtype)


def is_bare(hint: ast.expr | None) -> bool:
    """Whether it is an array, one or None, or a mapping to arrays; lists and callables may hold any shapes."""
    if isinstance(hint, ast.BinOp):
        return is_bare(hint.left) or is_bare(hint.right)
    if isinstance(hint, ast.Subscript) and ast.unparse(hint.value) in {"Mapping", "dict"}:
        return isinstance(hint.slice, ast.Tuple) and is_bare(hint.slice.elts[1])
    return hint is not None and ast.unparse(hint) in ARRAYS


def public(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """A module's public functions, and its public classes' methods."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name.endswith("__")):
            yield prefix + node.name, node


def arguments(function: ast.FunctionDef) -> list[ast.arg]:
    given = function.args
    several = [argument for argument in (given.vararg, given.kwarg) if argument is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]
