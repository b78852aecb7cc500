"""One thread computes for all requests: it takes turns, so that a long rollout does not keep the short ones waiting."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from ups.web.settings import ServerSettings

Result = TypeVar("Result")


class Full(Exception):
    """No more requests are taken now."""


class Queue:
    """`await queue.turn(function)` is what the function returns, computed when its turn has come."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ups-device", daemon=True)
        self._thread.start()

    async def turn(self, function: Callable[[], Result]) -> Result:
        future: Future[Result] = Future()
        with self._changed:
            if len(self._waiting) >= self.settings.queue:
                raise Full
            self._waiting.append((future, function))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(5)

    @torch.no_grad()
    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                future, function = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():  # the client left
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
