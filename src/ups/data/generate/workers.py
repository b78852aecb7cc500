"""Worker processes for work on data: quick to start, one thread each, gone when their parent is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from typing import Any, TypeVar

import torch

from ups.config.plugins import load_plugins, loaded_plugins
from ups.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
_STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def in_workers(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
    kept: str = "",
    setup: Callable[..., None] | None = None,
    *arguments: Any,
) -> Iterator[tuple[Item, Result]]:
    """`work` of each item: in this process, or in several and then in any order.

    Several call `setup(number, *arguments)` first, each with a number of its own from 0; a script that uses them must
    do so under `if __name__ == "__main__"`. When one is killed, `kept` says what is not lost.
    """
    if workers <= 1:
        for item in items:
            yield item, work(item)
        return
    pool = _pool(workers, setup, arguments)
    try:
        futures = {pool.submit(work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, perhaps for want of memory; start again with fewer (data.workers, --workers)"
            f"{kept}"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(workers: int, setup: Callable[..., None] | None, arguments: tuple[Any, ...]) -> ProcessPoolExecutor:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["ups.data.generate.make"])  # torch is imported once for all pools of a process
        # A wish to stop is the parent's to answer: one that ended the server or a worker would look like an error.
        resource_tracker.ensure_running()  # by itself the server starts it, which lets the signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    numbers = context.SimpleQueue()
    for number in range(workers):
        numbers.put(number)
    return ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start_worker, initargs=(numbers, loaded_plugins(), setup, arguments)
    )


def all_cores() -> int:
    return len(os.sched_getaffinity(0))


def _start_worker(
    numbers: Any, plugins: Sequence[str], setup: Callable[..., None] | None, arguments: tuple[Any, ...]
) -> None:
    """One thread. A wish to stop is the parent's to answer, here too; its end, however it came, is theirs."""
    torch.set_num_threads(1)
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    load_plugins(plugins)  # an equation of the user's own is sent by the name of its class
    if setup is not None:
        setup(numbers.get(), *arguments)


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
