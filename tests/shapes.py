"""Checks the shapes in the signatures of `ups` in every test: importing this before `ups` installs jaxtyping's hook.

Only annotations that name a shape are checked. The other types are pyright's, and many are protocols, which beartype
refuses unless they are `runtime_checkable`, and then checks by reading every property at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

# An int is a float, as PEP 484 says: `float | Float[Tensor, ""]` takes a 0.
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its shapes checked. jaxtyping gives stand-ins whose annotations are types, no longer strings."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if names_a_shape(hint)}
    return _check(function) if function.__annotations__ else function


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


jaxtyping.install_import_hook("ups", "shapes.checked")
