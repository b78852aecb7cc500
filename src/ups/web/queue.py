"""One thread computes for all requests. What is alike and waits is computed in one batch; batches take turns, so that a
long rollout does not keep the short ones waiting; what nobody waits for any more is given up at its next step.

    with queue.place() as place:              # refused when the server is full
        place.hold(len(body))
        result = await queue.rollout(question)
    await queue.turn(function)                # what function() returns, computed between two steps of the others
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ups.models.predictor import Predictor
from ups.rollout.predict import POINTS
from ups.rollout.question import Question, answers
from ups.rollout.result import Rollout
from ups.web.counters import Counters
from ups.web.settings import ServerSettings

Result = TypeVar("Result")

SLICE = 0.02
"""Seconds that a batch computes before it is the next one's turn."""
SIDE_BY_SIDE = 16
"""Batches that take turns; what comes after them waits."""


class Full(Exception):
    """No more is taken now."""


@dataclass(eq=False)
class Place:
    """A request's, from before its body is read until its answer is sent."""

    queue: Queue
    held: int = 0

    def hold(self, size: int) -> None:
        """So many bytes, instead of those before."""
        if self.queue.held - self.held + size > self.queue.settings.held:
            raise Full
        self.queue.held += size - self.held
        self.held = size


class Queue:
    def __init__(self, predictor: Predictor, settings: ServerSettings, counters: Counters) -> None:
        self.settings, self.counters = settings, counters
        self.places, self.held = 0, 0
        self._predictor = predictor
        self._waiting: deque[tuple[Future[Rollout], Question, Any]] = deque()
        self._turns: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ups-device", daemon=True)
        self._thread.start()

    @contextmanager
    def place(self) -> Iterator[Place]:
        if self.places >= self.settings.queue:
            raise Full
        self.places += 1
        place = Place(self)
        try:
            yield place
        finally:
            self.places -= 1
            self.held -= place.held

    async def rollout(self, question: Question) -> Rollout:
        """Cancelled, it is computed no further."""
        return await self._asked(self._waiting, question, question.kind())

    async def turn(self, function: Callable[[], Result]) -> Result:
        return await self._asked(self._turns, function)

    async def _asked(self, queue: deque[Any], *what: Any) -> Any:
        future: Future[Any] = Future()
        with self._changed:
            if self._closed or len(queue) >= self.settings.queue:
                raise Full
            queue.append((future, *what))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(5)

    @torch.no_grad()
    def _work(self) -> None:
        active: deque[_Batch] = deque()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting or self._turns or active)
                if self._closed:
                    return
                turn = self._turns.popleft() if self._turns else None
                if self._waiting and len(active) < SIDE_BY_SIDE:
                    active.append(self._next())
            if turn is not None and not turn[0].cancelled():
                _settle(turn[0], turn[1])
            if active and (batch := active.popleft()).proceed(self._predictor):
                active.append(batch)
            batch = turn = None  # what is done is let go before the next wait

    def _next(self) -> _Batch:
        """The one that waits longest, and those like it."""
        chosen: list[tuple[Future[Rollout], Question]] = []
        kept, rows, first = [], 0, None
        while self._waiting:
            future, question, kind = self._waiting.popleft()
            most = min(self.settings.samples, POINTS // math.prod(question.frames.shape[2:-1]))
            if future.cancelled():
                continue
            if first is None or (kind == first and rows + len(question.frames) <= most):
                first, rows = kind, rows + len(question.frames)
                chosen.append((future, question))
            else:
                kept.append((future, question, kind))
        self._waiting.extend(kept)  # the same deque: who asks now may hold it already
        self.counters.batches.observe(rows)
        return _Batch(chosen)


@dataclass(eq=False)
class _Batch:
    waiting: Sequence[tuple[Future[Rollout], Question]]
    computing: Any = field(default=None)

    def proceed(self, predictor: Predictor) -> bool:
        """Compute for a while; whether there is more to do."""
        until = time.monotonic() + SLICE
        try:
            if self.computing is None:
                self.computing = answers(predictor, [question for _, question in self.waiting])
            while time.monotonic() < until:
                if all(future.cancelled() for future, _ in self.waiting):
                    return False
                next(self.computing)
        except StopIteration as end:
            for (future, _), rollout in zip(self.waiting, end.value, strict=True):
                _settle(future, lambda rollout=rollout: rollout)
            return False
        except Exception as error:
            for future, _ in self.waiting:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            return False
        return True


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    """Unless nobody waits for it any more."""
    try:
        result = function()
    except Exception as error:
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)
