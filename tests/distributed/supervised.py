"""Supervised jobs for tests: a real supervisor in a process of its own, forked from a warm server that has torch.

job = start(tmp_path, ranks=2, fault="kill at update rank 1 step 7")
assert job.wait() == 0
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ranks as _warm  # noqa: F401  sets up the server that jobs are forked from

TOY = Path(__file__).with_name("toy_rank.py")


@dataclass
class Job:
    process: Any
    run: Path
    output: Path

    def wait(self, timeout: float = 30.0) -> int:
        """The supervisor's exit code; killed and an AssertionError if it does not end."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"the job did not end within {timeout} s; it said:\n{self.said()}")
        return self.process.exitcode

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, count: int = 1, timeout: float = 20.0) -> None:
        """Until the supervisor or rank 0 has said `text`."""
        end = time.monotonic() + timeout
        while self.said().count(text) < count:
            assert time.monotonic() < end, f"{text!r} was not said; instead:\n{self.said()}"
            assert self.process.is_alive() or self.said().count(text) >= count, self.said()
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """Of all ranks in all attempts that told theirs."""
        logs = [self.output, *sorted((self.run / "logs").glob("rank*.log"))]
        words = [line.split() for log in logs for line in log.read_text().splitlines() if " pid " in line]
        return [int(line[line.index("pid") + 1]) for line in words]

    def started(self, rank: int, attempt: int = 0, timeout: float = 20.0) -> tuple[int, float]:
        """Waits until a rank of an attempt is at work; its process id and the monotonic time at which it was ready."""
        log = self.output if rank == 0 else self.run / "logs" / f"rank{rank}.log"
        end = time.monotonic() + timeout
        while True:
            lines = log.read_text().splitlines() if log.exists() else []
            words = [line.split() for line in lines if line.startswith(f"rank {rank} attempt {attempt} ")]
            if words and len(words[0]) == 8:
                return int(words[0][5]), float(words[0][7])
            assert time.monotonic() < end, f"rank {rank} did not start:\n{self.said()}"
            time.sleep(0.02)

    def reports(self) -> list[dict[str, Any]]:
        """The crash reports, oldest first."""
        return [json.loads(path.read_text()) for path in sorted((self.run / "crash").glob("*Z.json"))]


def start(
    run: Path,
    *,
    ranks: int = 2,
    steps: int = 12,
    seconds: float = 0.01,
    state: str = "finished",
    fault: str = "",
    deadline: float = 12.0,
    restarts: int = 3,
    nodes: str = "1",
    rendezvous: str | None = None,
    grace: float = 3.0,
    gloo: bool = False,
) -> Job:
    """A job of toy ranks in the run directory `run`."""
    run.mkdir(parents=True, exist_ok=True)
    output = run / f"said-{time.monotonic_ns()}.txt"
    output.touch()
    arguments = [str(steps), str(seconds), state, *(["gloo"] if gloo else [])]
    settings = {"deadline": deadline, "restarts": restarts, "device": "cpu"}
    variables = {"UPS_FAULT": fault, "UPS_GRACE": str(grace)}
    process = multiprocessing.get_context("forkserver").Process(
        target=_drive, args=(run, ranks, arguments, settings, nodes, rendezvous, variables, output)
    )
    process.start()
    return Job(process, run, output)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _drive(
    run: Path,
    ranks: int,
    arguments: list[str],
    settings: dict[str, Any],
    nodes: str,
    rendezvous: str | None,
    variables: dict[str, str],
    output: Path,
) -> None:
    """What a command does around `supervise`."""
    from ups.distributed.launch.supervisor import supervise
    from ups.distributed.runtime.settings import RuntimeConfig
    from ups.errors import UserError

    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(variables)
    command = [sys.executable, str(TOY), *arguments]
    config = RuntimeConfig(**settings)
    try:
        outcome = supervise(command, run, ranks, config=config, nodes=nodes, address=rendezvous)
    except UserError as error:
        print(f"error: {error}", flush=True)
        sys.exit(2)
    print(f"outcome: {outcome.state}: {outcome.reason}", flush=True)
    sys.exit(outcome.code)
