"""Things that configurations call by name, and that users may add to."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from ups.errors import UserError

T = TypeVar("T")


class Registry(Generic[T]):
    """`Registry("architecture", {"fno": ...})["fnoo"]` is refused with the nearest name."""

    def __init__(self, kind: str, known: Mapping[str, T]) -> None:
        self.kind, self._known = kind, dict(known)

    def __getitem__(self, name: str) -> T:
        if name not in self:
            close = difflib.get_close_matches(str(name), self._known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UserError(f"there is no {self.kind} {name!r}; {hint}known: {', '.join(self._known)}")
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def add(self, name: str, thing: T) -> T:
        """The same thing twice is fine; another of the same name is refused."""
        if self._known.setdefault(name, thing) is not thing:
            raise UserError(f"there is an {self.kind} {name!r} already; choose another name")
        return thing
