"""Warm processes to run a function on several ranks: starting python and torch takes seconds, a task milliseconds.

    results = run_ranks(3, function, argument)      # [function(argument) on rank 0, on rank 1, on rank 2]

The function (a module's own, so that it can be sent) finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR
and MASTER_PORT in its environment, as torchrun sets them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(  # shapes before ups, whose signatures it has checked
    [
        "shapes",
        "torch",
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "ups.training.trainer",
        "ups.distributed.launch.agent",
    ]
)
# Where the server, which does not take over sys.path, finds shapes.
_PATH = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
_pool: list[tuple[Any, Connection]] = []


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> list[Any]:
    """What `function(*arguments)` returns on each of `size` ranks; an AssertionError if one raises, dies or hangs."""
    while len(_pool) < size:
        ours, theirs = _context.Pipe()
        process = _context.Process(target=_serve, args=(theirs,), daemon=True)
        with patch.dict(os.environ, PYTHONPATH=_PATH):
            process.start()
        theirs.close()
        _pool.append((process, ours))
    port = free_port()
    for rank, (_, pipe) in enumerate(_pool[:size]):
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        pipe.send((variables, function, arguments))
    answers: dict[int, tuple[bool, Any]] = {}
    waiting = {pipe: rank for rank, (_, pipe) in enumerate(_pool[:size])}
    while waiting and (ready := wait(list(waiting), timeout)):
        for pipe in ready:
            rank = waiting.pop(pipe)
            try:
                answers[rank] = pipe.recv()
            except EOFError:
                answers[rank] = (False, "the process died")
    for rank in waiting.values():  # perhaps for a peer that failed, so what that one says belongs beside it
        answers[rank] = (False, f"no answer within {timeout} s")
    if problems := [f"rank {rank}: {value}" for rank, (good, value) in sorted(answers.items()) if not good]:
        close()  # what one failure leaves behind must not trouble the next test
        raise AssertionError("\n".join(problems))
    return [answers[rank][1] for rank in range(size)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def close() -> None:
    for process, pipe in _pool:
        pipe.close()
        process.kill()
        process.join()
    _pool.clear()


atexit.register(close)


def _serve(pipe: Connection) -> None:
    import shapes
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            variables, function, arguments = pipe.recv()
        except EOFError:
            return
        os.environ.update({name: str(value) for name, value in variables.items()})
        shapes.new_test()
        try:
            pipe.send((True, function(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        if torch.distributed.is_initialized():  # a job that is stopped ends without, and its process with it
            torch.distributed.destroy_process_group()
