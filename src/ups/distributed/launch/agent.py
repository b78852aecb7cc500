"""The supervisor's hands: torch's elastic agent, with our own eyes and our own way to stop ranks.

Torch's agent starts the ranks and meets other nodes. Its monitoring is replaced: it would ask survivors politely to
leave and wait 30 s for them, take an exit with code 0 for success, and never see a hang.
"""

# Torch's `prof` decorator hides the signatures of what is overridden here.
# pyright: reportIncompatibleVariableOverride=false, reportCallIssue=false

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from ups.distributed.faults.crash import attempt_directory
from ups.distributed.faults.crash_report import CrashReport, Death, Hang, flights_of, write_crash_report
from ups.distributed.launch import backoff
from ups.distributed.launch.claim import gone
from ups.distributed.launch.nodes import Neighbours
from ups.distributed.launch.outcome import Outcome, decide, outcome_of, reserve
from ups.distributed.launch.rendezvous import Rendezvous
from ups.distributed.launch.watch import Watch, say
from ups.distributed.runtime.host import host_state, process_use
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.signals import stop_signals
from ups.durable import refusal
from ups.errors import UserError
from ups.track.jsonl import Events

INTERVAL = 0.1  # seconds between two looks at the processes
STACK_SECONDS, FLIGHT_SECONDS = 1.0, 15.0  # for the ranks to write their stacks, and NCCL its records
LEAVING = {"finished": 30.0, "mistake": 2.0, "gave_up": 2.0}  # seconds for the rest to leave after a decided end
_MANY = 1_000_000  # restarts as far as torch is concerned; ours are counted in `backoff`


@dataclass(frozen=True)
class SupervisedJob:
    command: tuple[str, ...]
    directory: Path
    ranks: int
    config: RuntimeConfig
    grace: float
    shown: tuple[str, ...]
    """The command that a user would start again, for reports."""


class Interrupted(Exception):
    """A signal asked to stop while no rank was running."""


def run_agent(job: SupervisedJob, rendezvous: Rendezvous) -> Outcome | None:
    """Start, watch and restart until the end. Returns an outcome only where no rank decided one."""
    _silence()
    agent = Agent(job, rendezvous)
    before = {number: signal.signal(number, agent.ask) for number in stop_signals()}
    lost = False
    try:
        agent.run()
    except Interrupted:
        return Outcome("stopped", "asked to stop while no rank was running")
    except (RendezvousConnectionError, DistError) as error:
        if rendezvous.host:
            raise
        lost = True
        say(f"the rendezvous at {rendezvous.place} is lost: {str(error).splitlines()[0]}")
        return Outcome(
            "stopped", f"the node that hosts {rendezvous.place} is lost or cannot be reached; start all again to resume"
        )
    except RendezvousStateError as error:
        lost = True
        if rendezvous.host:
            return Outcome(
                "stopped", f"{error}, and was not used ({rendezvous.place}); see who else is on that network"
            )
        raise UserError(f"{error} ({rendezvous.place}); all nodes must share the run directory") from error
    except RendezvousTimeoutError:
        return Outcome(
            "stopped", f"fewer than {rendezvous.nodes[0]} nodes met at {rendezvous.place}; start all again to resume"
        )
    except RendezvousClosedError:  # another node ended the job
        return None if outcome_of(job.directory) else Outcome("stopped", "another node ended the job; resume it")
    finally:
        agent.close()
        if not lost:
            rendezvous.handler.shutdown()
        for number, handler in before.items():
            # Once asked to stop, another signal must not take its exit code from a process that is leaving.
            signal.signal(number, handler if agent._asked is None else signal.SIG_IGN)
    return agent.ended


class Agent(LocalElasticAgent):
    """One node's ranks."""

    def __init__(self, job: SupervisedJob, rendezvous: Rendezvous) -> None:
        spec = WorkerSpec(
            role="ups",
            local_world_size=job.ranks,
            rdzv_handler=rendezvous.handler,
            entrypoint=job.command[0],
            args=job.command[1:],
            max_restarts=_MANY,
            monitor_interval=INTERVAL,
        )
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull), exit_barrier_timeout=30)
        self.job = job
        self.attempt = -1
        self.ended: Outcome | None = None
        self._asked: float | None = None
        self._joining = False
        self._deaths: dict[int, tuple[int, int]] = {}  # rank: (exit code, how many were dead before it)
        self._neighbours: Neighbours | None = None
        self._looked = 0.0
        self._watch: Watch | None = None
        self._before = host_state()
        self._place = os.open(job.directory, os.O_RDONLY)  # held, so that no other directory gets its number
        self._unwritten = 0  # crashes that could not be counted on the disk

    # Signals

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Hand a wish to stop to the ranks, once: they save and leave. A second Ctrl-C kills them."""
        if self._asked is not None:
            if number == signal.SIGINT:
                self._signal(signal.SIGKILL)
            return
        self._asked = time.monotonic()
        if self._joining:
            raise Interrupted
        self._signal(signal.SIGTERM)

    def close(self) -> None:
        """Whatever happened: no rank is left, nor a thread of torch's that would keep this process alive."""
        self.kill()
        os.close(self._place)
        if self._pcontext is not None:
            self._pcontext.close()

    # What torch's agent calls

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._joining = True
        try:
            if self._asked is not None:
                raise Interrupted
            super()._rendezvous(worker_group)
        finally:
            self._joining = False

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._neighbours = Neighbours(worker_group, self.attempt + 1)
        self.attempt = self._neighbours.attempt
        self._remaining_restarts = _MANY - self.attempt  # so that TORCHELASTIC_RESTART_COUNT is the attempt
        reserve(self.job.directory)  # if a rank was killed while it decided
        folder = attempt_directory(self.job.directory, self.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / "flight_")
        os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(folder / "dump_")
        self._deaths.clear()
        self._before = host_state()
        self._looked = time.monotonic()
        self._watch = Watch(self.job.directory, self.job.config.deadline, self.attempt, self._neighbours)
        started = super()._start_workers(worker_group)
        if self._asked is not None:  # the signal came while the processes were being made
            self._signal(signal.SIGTERM)
        return started

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self.kill()
        super()._stop_workers(worker_group)

    def _shutdown(self, *how: Any, **more: Any) -> None:  # torch 2.11 and 2.13 differ in what they say
        self.kill()  # torch would ask first, and wait for ranks that wait for a lost node
        super()._shutdown(*how, **more)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._look()
        self._check_place()
        if self._asked is not None or outcome_of(self.job.directory):
            return self._leave()
        hang = None if self._deaths or self._watch is None else self._watch.hang(self._living())
        if self._deaths or hang:
            return self._crash(hang)
        self._looked = time.monotonic()
        return RunResult(WorkerState.HEALTHY)

    # Looking

    def _processes(self) -> dict[int, Any]:
        """This node's processes by their global rank."""
        if self._pcontext is None:
            return {}
        handlers = self._pcontext.subprocess_handlers  # pyright: ignore[reportAttributeAccessIssue]
        return {worker.global_rank: handlers[worker.local_rank].proc for worker in self._worker_group.workers}

    def _living(self) -> dict[int, Any]:
        return {rank: process for rank, process in self._processes().items() if process.poll() is None}

    def _look(self) -> None:
        """Note who has died since the last look."""
        for rank, process in self._processes().items():
            if rank not in self._deaths and (code := process.poll()) is not None:
                self._deaths[rank] = code, len(self._deaths)

    def _check_place(self) -> None:
        """Where the run directory was, the next job may begin another: it must not find what this one writes."""
        try:
            same = os.path.samestat(os.fstat(self._place), os.stat(self.job.directory))
        except FileNotFoundError:
            same = False
        except OSError:  # a network's disk that does not answer now
            return
        if not same:
            raise gone(self.job.directory)

    # Ending

    def _leave(self) -> RunResult:
        """A decided end, or a wish to stop: the ranks have some time to leave by themselves."""
        asked, decided, said = self._asked, None, False
        while self._living():
            now = time.monotonic()
            if asked and not said:  # not in `ask`: a signal may come within a print
                said = True
                say(f"stopping: the ranks have {self.job.grace:.0f} s to save and leave; Ctrl-C again kills them")
            if decided is None and (outcome := outcome_of(self.job.directory)):
                decided = now + LEAVING.get(outcome.state, self.job.grace)
            asked = self._asked  # a signal may come while we wait
            if now > min(end for end in (decided, asked and asked + self.job.grace) if end):
                break
            time.sleep(INTERVAL / 2)
        late = sorted(self._living())
        self._look()
        self.kill()
        if outcome_of(self.job.directory) is None:
            self.ended = self._stopped(late)
        workers = self._worker_group.workers
        return RunResult(WorkerState.SUCCEEDED, return_values={worker.global_rank: None for worker in workers})

    def _stopped(self, late: list[int]) -> Outcome:
        """The ranks were asked to stop and did not decide anything themselves."""
        if any(code not in (0, -signal.SIGTERM, -signal.SIGKILL) for code, _ in self._deaths.values()):
            report = self._report([], None)
            return Outcome("stopped", f"{report.what} while stopping ({report.path}); what was saved before is kept")
        if late:
            what = f"rank {', '.join(map(str, late))} did not leave in time and was killed"
            return Outcome("stopped", f"{what}; what was saved before is kept")
        return Outcome("stopped", "stopped before there was anything to save")

    def _crash(self, hang: Hang | None) -> RunResult:
        """Get the stacks, kill the ranks, write the report; then torch's agent starts them again."""
        found = time.monotonic()
        self._await_stacks(hang)
        if self._neighbours is not None:
            self._neighbours.check()  # a node that is cut off writes nothing into the directory the others go on in
        if outcome_of(self.job.directory):  # a rank had decided, and its peers died of its leaving
            return self._leave()
        living = [
            Death(rank, process.pid, None, 0, *process_use(process.pid)) for rank, process in self._living().items()
        ]
        self.kill()
        delay = hang.seconds if hang else found - self._looked
        try:
            report = self._report(living, hang, delay)
            crashes = backoff.count_crash(self.job.directory, self.attempt)
        except OSError as error:  # a full disk, most likely; the ranks say so themselves if it lasts
            self._unwritten += 1
            what = f"rank {', '.join(map(str, sorted(self._deaths)))} failed, and no report could be written ({error})"
            report = CrashReport(self.job.directory / "crash", None, "unknown", what, what)
            crashes = self._unwritten
        reason = None
        if crashes > self.job.config.restarts:
            reason = f"{crashes} crashes in a row without progress; {report.cause} See {report.path}"
        elif refused := self._await_disk():
            reason = f"{report.what}, and {self.job.directory} cannot be written to ({refused}); free some space"
        if reason is not None:
            say(f"{report.what}; giving up")
            decide(self.job.directory, Outcome("gave_up", reason, report.rank or 0))
            self._remaining_restarts = 0
        else:
            say(f"{report.what}; restarting from the last checkpoint (attempt {self.attempt + 1})")
        return RunResult(WorkerState.FAILED)

    def _await_disk(self) -> str:
        """Wait for the room a start needs, until asked to stop, as long as the user allows; else why there is none."""
        end, said = time.monotonic() + self.job.config.disk_patience, False
        while self._asked is None and (refused := refusal(self.job.directory)):
            if time.monotonic() > end:
                return refused
            if not said:
                say(f"{self.job.directory} cannot be written to ({refused}); the ranks start again when it can")
            said = True
            self._check_place()
            time.sleep(INTERVAL)
        return ""

    def _await_stacks(self, hang: Hang | None) -> None:
        """Ask the ranks for their stacks and wait a moment for them, and for whoever is still dying.

        A survivor can leave before the one that failed: while only survivors are dead, the whole second is waited.
        """
        folder = attempt_directory(self.job.directory, self.attempt)
        sizes = {}
        for rank, process in self._living().items():
            path = folder / f"rank_{rank}.stacks"
            if path.is_file():  # else it has no handler yet, and the signal would kill it
                sizes[rank] = path.stat().st_size
                process.send_signal(signal.SIGUSR1)
                process.send_signal(signal.SIGCONT)  # one that was stopped writes only when it goes on
        pipes = list(folder.glob("dump_*.pipe")) if hang else []
        for pipe in pipes:  # NCCL looks into it once a second, and writes what its collectives wait for
            with suppress(OSError):  # nobody reads it any more
                descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                os.write(descriptor, b"1\n")
                os.close(descriptor)
        end = time.monotonic() + (FLIGHT_SECONDS if pipes else STACK_SECONDS)
        while time.monotonic() < end:
            time.sleep(INTERVAL / 2)
            self._look()
            written = all(
                rank in self._deaths or (folder / f"rank_{rank}.stacks").stat().st_size > size
                for rank, size in sizes.items()
            )
            told = any(code == 0 or code < 0 for code, _ in self._deaths.values())
            written = written and len(flights_of(folder)) >= len(pipes)
            if written and (hang or told or len(self._deaths) == len(self._processes())):
                time.sleep(INTERVAL / 2)  # for the end of a stack whose beginning is there
                return

    def _report(self, living: list[Death], hang: Hang | None, delay: float | None = None) -> CrashReport:
        """Write the report and an event of it."""
        processes = self._processes()
        dead = [Death(rank, processes[rank].pid, code, order) for rank, (code, order) in self._deaths.items()]
        report = write_crash_report(
            self.job.directory,
            [*dead, *living],
            attempt=self.attempt,
            command=self.job.shown,
            before=self._before,
            hang=hang,
            device=self._device(),
            seconds_to_detect=delay,
        )
        with Events(self.job.directory / "events.jsonl") as events:
            events.write(
                "crash",
                attempt=self.attempt,
                rank=report.rank,
                cause=report.cause,
                report=str(report.path.relative_to(self.job.directory)),
                seconds_to_detect=delay,
            )
        return report

    def _device(self) -> str:
        device = self.job.config.device
        return device if device != "auto" else "cuda" if os.path.exists("/dev/nvidiactl") else "cpu"

    def kill(self) -> None:
        """End every rank of this node now, with whatever processes it started."""
        self._signal(signal.SIGKILL)
        for rank, process in self._processes().items():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                say(f"rank {rank} (process {process.pid}) cannot be killed: it is stuck in the kernel; look at dmesg")

    def _signal(self, number: signal.Signals) -> None:
        for process in self._living().values():
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)  # each rank leads a session of its own
            else:
                process.send_signal(number)


def _silence() -> None:
    """Torch's elastic loggers tell of every step; what a user needs, we say ourselves."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
