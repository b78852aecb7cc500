"""The next step's data, read while a GPU computes this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

How = TypeVar("How")
T = TypeVar("T")


class Ahead(Generic[How, T]):
    """`load(step, how)` of one step after the other, of which one thread always reads the next. An error in there is
    raised when its step is asked for.
    """

    def __init__(self, load: Callable[[int, How], Iterable[T]]) -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(1, "ahead")
        self._begun: dict[tuple[int, How], Future[list[T]]] = {}

    def __call__(self, step: int, how: How) -> list[T]:
        now = self._begun.pop((step, how), None) or self._begin(step, how)
        items = now.result()
        self._begun = {(step + 1, how): self._begin(step + 1, how)}
        return items

    def _begin(self, step: int, how: How) -> Future[list[T]]:
        return self._thread.submit(lambda: list(self._load(step, how)))
