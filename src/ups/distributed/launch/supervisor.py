"""One process that starts the ranks of a job, watches them, starts them again, and alone says how it ended.

    outcome = supervise([sys.executable, "-m", "ups", "train", ...], directory, ranks=2, config=config.runtime)

A rank that dies, hangs, or leaves without a decided outcome is a crash: a report is written, all ranks are killed and
started again from the last checkpoint. Torch's elastic agent does the starting and the rendezvous of several nodes;
torch is imported only when it is needed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from ups.distributed.launch import backoff
from ups.distributed.launch.outcome import Outcome, decide, forget, outcome_of
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.spinning import ROUNDS, SPIN
from ups.errors import UserError

_PR_SET_PDEATHSIG = 1


def supervise(
    command: Sequence[str],
    directory: Path,
    ranks: int,
    *,
    config: RuntimeConfig,
    nodes: str = "1",
    address: str | None = None,
    shown: Sequence[str] = (),
) -> Outcome:
    """Run `ranks` processes of `command` on this node until the job ends by decision.

    `nodes` is a number or MIN:MAX; several nodes meet at `address`, HOST:PORT, which one of them hosts. The caller
    holds the lock of the run directory, which all nodes share. `shown` is the command to start again, for reports.
    """
    least, most = _nodes(nodes, address)
    directory = directory.resolve()
    import_torch()
    with _variables(_agent_variables()):
        from ups.distributed.launch.agent import SupervisedJob, run_agent
        from ups.distributed.launch.rendezvous import join

        rendezvous = join(directory, least, most, address)
    before = _forget_last_job(directory) if rendezvous.host else None
    job = SupervisedJob(tuple(command), directory, ranks, config, _grace(), tuple(shown or command))
    variables = rank_variables(directory, ranks, config, os.environ, interface=rendezvous.interface)
    with _variables({**_agent_variables(), **variables}):
        ended = run_agent(job, rendezvous)
    if rendezvous.host and ended is not None:
        decide(directory, ended)
    outcome = outcome_of(directory) if rendezvous.host or ended is None else ended
    if outcome is None:
        raise RuntimeError(f"the job in {directory} ended without an outcome")
    if rendezvous.host:
        decide(directory, outcome, before)  # which changes it only where a finished run refused this command
        backoff.clear(directory)
    return outcome


def import_torch() -> None:
    """Import torch, first of all, without the warnings of its C++ parts: what they mean, the supervisor says itself.

    The level is read at the import and only then; the ranks, which inherit the environment, keep their warnings.
    """
    with _variables({"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "FATAL")}):
        import torch  # noqa: F401


def rank_variables(
    directory: Path, ranks: int, config: RuntimeConfig, given: Mapping[str, str], *, interface: str | None
) -> dict[str, str]:
    """What the ranks must find in their environment before they import torch; the user's own settings win, save one.

    TORCH_NCCL_ASYNC_ERROR_HANDLING is overwritten: with other values than 3 a collective that failed hands out wrong
    numbers for a moment.
    """
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // ranks)
    wished = {
        "OMP_NUM_THREADS": str(threads),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "PYTHONUNBUFFERED": "1",
    }
    given = {name: value for name, value in given.items() if (name, value) != (SPIN, ROUNDS)}  # ours, not the user's
    if ranks > 1 and config.device != "cuda" and not {SPIN, "OMP_WAIT_POLICY"} & given.keys():
        wished |= {"OMP_WAIT_POLICY": "PASSIVE", SPIN: "0"}  # spinning threads of several ranks starve one another
    if interface is not None:
        wished["GLOO_SOCKET_IFNAME"] = interface  # else gloo asks what address the host's name has, often a wrong one
    if interface == "lo":
        wished["NCCL_SOCKET_IFNAME"] = interface  # nobody else has to reach ranks of one node
    if "PYTORCH_ALLOC_CONF" not in given:
        wished["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return {name: value for name, value in wished.items() if name not in given} | {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "UPS_SUPERVISED": "1",
        "UPS_SUPERVISOR": str(os.getpid()),
        "UPS_RUN": str(directory),
    }


def rank_starts() -> None:
    """First thing in a rank's process: die with the supervisor, and write to the rank's own log.

    Rank 0's standard output stays on the terminal; its errors, and all that the others say, go to `logs/rankR.log`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot ask to die with the supervisor")
    if os.getppid() != int(os.environ["UPS_SUPERVISOR"]):  # it died before we asked
        os._exit(1)
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    log = Path(os.environ["UPS_RUN"]) / "logs" / f"rank{rank}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with suppress(OSError):  # a full disk
        os.write(descriptor, f"--- attempt {attempt}, {datetime.now(UTC).isoformat(timespec='seconds')}\n".encode())
    for stream, number in ((sys.stderr, 2), (sys.stdout, 1)):
        if number == 2 or rank > 0:
            stream.flush()
            os.dup2(descriptor, number)
    os.close(descriptor)


def _agent_variables() -> dict[str, str]:
    return {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else restarted ranks read dead addresses from the agent's store
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT",  # SIGTERM, SIGINT and SIGHUP are ours
    }


def _grace() -> float:
    """Seconds the ranks have to save and leave after a signal; tests shorten it."""
    return float(os.environ.get("UPS_GRACE", "25"))


def _nodes(nodes: str, rendezvous: str | None) -> tuple[int, int]:
    least, _, most = nodes.partition(":")
    try:
        found = int(least), int(most or least)
    except ValueError:
        found = 0, 0
    if not 1 <= found[0] <= found[1]:
        raise UserError(f"--nodes {nodes}: give a number of nodes, or the least and the most as MIN:MAX")
    if found[1] > 1 and rendezvous is None:
        raise UserError(f"--nodes {nodes} needs --rendezvous HOST:PORT, the same on every node, HOST being one of them")
    return found


def _forget_last_job(directory: Path) -> Outcome | None:
    """Heartbeats, failures and the outcome of an earlier job would be taken for this one's; its reports stay."""
    before = forget(directory)
    backoff.new_job(directory)
    shutil.rmtree(directory / "heartbeats", ignore_errors=True)
    for attempt in (directory / "crash").glob("attempt_*"):
        shutil.rmtree(attempt, ignore_errors=True)
    return before


@contextmanager
def _variables(new: Mapping[str, str]) -> Iterator[None]:
    """The environment with `new` in it for a while: the ranks inherit it, the caller does not."""
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
