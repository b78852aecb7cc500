"""Checks the shapes in the signatures of `ups` in every test: importing this before `ups` installs jaxtyping's hook.

Only annotations that name a shape are checked. The other types are pyright's, and many are protocols, which beartype
refuses unless they are `runtime_checkable`, and then checks by reading every property at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import wraps
from types import CodeType, FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

# An int is a float, as PEP 484 says: `float | Float[Tensor, ""]` takes a 0.
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


_jaxtyped = jaxtyping.jaxtyped

CALLS = 20
"""Of a function in a test that are checked: solvers call theirs thousands of times, always with the same shapes."""
_test = 0


def new_test() -> None:
    """Check the next calls of every function again."""
    global _test
    _test += 1


def checked(thing: Any = None, *, typechecker: Any = None) -> Any:
    """Stands in for `jaxtyping.jaxtyped`, with which the hook decorates every function and class of `ups`."""
    if thing is None:
        return checked
    if not isinstance(thing, type):
        return _checked_function(thing) if _is_shaped(thing) else thing
    if is_dataclass(thing) and "__init__" in vars(thing):
        thing.__init__ = checked(thing.__init__)
    return thing


def _checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    always = _jaxtyped(function, typechecker=_shapes_only)
    test = left = 0

    @wraps(function)
    def sometimes(*args: Any, **kwargs: Any) -> Any:
        nonlocal test, left
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if test != _test:
            test, left = _test, CALLS
        if left == 0:
            return function(*args, **kwargs)
        left -= 1
        return always(*args, **kwargs)

    return sometimes


def _shapes_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """jaxtyping gives stand-ins whose annotations are types, no longer strings."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if names_a_shape(hint)}
    return _check(function) if function.__annotations__ else function


_shaped: dict[CodeType, bool] = {}  # a function within a function is decorated whenever the outer one is called


def _is_shaped(function: FunctionType) -> bool:
    code = function.__code__
    # All __init__ of dataclasses may look alike.
    if code not in _shaped or function.__name__ == "__init__":
        _shaped[code] = any(names_a_shape(_read(hint, function)) for hint in function.__annotations__.values())
    return _shaped[code]


def _read(hint: Any, function: FunctionType) -> Any:
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, function.__globals__)
    except Exception:  # imported for pyright alone, or a name of the class or function around it: none has a shape
        return None


def names_a_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(names_a_shape(part) for part in get_args(hint))


@contextmanager
def unchecked() -> Iterator[None]:
    """For a test that gives a wrong shape on purpose, to see what `ups` itself says of it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


jaxtyping.jaxtyped = checked
jaxtyping.install_import_hook("ups", None)
