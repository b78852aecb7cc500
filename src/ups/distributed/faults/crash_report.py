"""The crash report, written by the supervisor when a job has died and before it is started again.

It reads what the dead left (heartbeats, stacks, failures, logs), decides who was first, and writes
`RUN/crash/<time>.json` and `.md`. A signal is blamed before an exception, an exception before an abort and a lost
connection: the survivors of a dead rank fail too, or are aborted by NCCL, and are not to blame.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ups.distributed.faults.crash import attempt_directory
from ups.distributed.faults.heartbeat import Beat, heartbeats_of
from ups.distributed.faults.report_text import markdown
from ups.distributed.runtime.host import HostState, host_state, oom_kills
from ups.durable import write

_LOG_LINES = 40
_LONGEST = 20_000
_WHERE = "<where>"
_FATAL = {"Segmentation fault": signal.SIGSEGV, "Bus error": signal.SIGBUS, "Illegal instruction": signal.SIGILL}
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


@dataclass(frozen=True)
class Death:
    """How one local rank was found: its exit code (None: alive), in the order of dying, and what it used."""

    rank: int
    pid: int
    code: int | None
    order: int = 0
    resident: int | None = None
    descriptors: int | None = None


@dataclass(frozen=True)
class Hang:
    """The rank that kept the others waiting, how long, and how long it might have; nodes it waited for itself; whether
    a signal or a debugger had stopped it.
    """

    heartbeat: Beat
    seconds: float
    deadline: float
    lost: tuple[int, ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class CrashReport:
    """What was found, for the supervisor's own line and its counting."""

    path: Path
    rank: int | None
    kind: str
    what: str
    cause: str


def write_crash_report(
    directory: Path,
    deaths: Sequence[Death],
    *,
    attempt: int,
    command: Sequence[str],
    before: HostState,
    hang: Hang | None = None,
    device: str = "cpu",
    seconds_to_detect: float | None = None,
) -> CrashReport:
    """Judge and write. Everything it reads may be missing; it never waits."""
    now = datetime.now(UTC)
    folder = attempt_directory(directory, attempt)
    heartbeats = {
        heartbeat.rank: heartbeat
        for heartbeat in heartbeats_of(directory / "heartbeats")
        if heartbeat.attempt == attempt
    }
    failures = _failures(folder)
    stacks = {rank: text for rank in {*heartbeats, *(d.rank for d in deaths)} if (text := _stacks(folder, rank))}
    deaths = [_died_of(death, stacks.get(death.rank, "")) for death in deaths]
    # The others have rightly gone on from a collective to which one that was stopped had given its part.
    absent = _absent(hang.heartbeat, heartbeats.values(), device) if hang and not hang.stopped else None
    rank, kind, what = _judge(deaths, failures, hang, absent)
    # Where a rank hung is where it was found: one that was stopped has gone on since, to write its stack.
    heartbeat = (absent or hang.heartbeat) if hang else heartbeats.get(rank) if rank is not None else None
    failure = failures.get(rank, {}) if rank is not None and kind in ("exception", "connection") else {}
    after = host_state()
    place = (failure or None) and {"phase": failure["phase"], "step": failure["step"]}
    place = place or {"phase": heartbeat.phase if heartbeat else "start", "step": heartbeat.step if heartbeat else 0}
    what = what.replace(_WHERE, f"in {place['phase']}, step {place['step']}")
    content = {
        "time": now.isoformat(timespec="milliseconds"),
        "attempt": attempt,
        "rank": rank,
        "kind": kind,
        "what": what,
        "cause": _cause(rank, kind, what, failure, stacks.get(rank or 0, ""), before, after),
        **place,
        "host": socket.gethostname(),
        "device": failure.get("details", {}).get("device", device),
        "task": failure.get("details", {}).get("task"),
        "shapes": failure.get("details", {}).get("shapes"),
        "seconds_to_detect": None if seconds_to_detect is None else round(seconds_to_detect, 3),
        "deadline": hang and hang.deadline,
        "command": shlex.join(command),
        "ranks": _ranks(directory, deaths, heartbeats, failures, stacks),
        "host_state": {"before": asdict(before), "after": asdict(after), "oom_kills": oom_kills(before, after)},
        "flight_recorder": {str(path.relative_to(directory)): _unfinished(path) for path in flights_of(folder)},
        "environment": _environment(directory),
    }
    name = now.strftime("%Y%m%dT%H%M%S") + f"_{now.microsecond // 1000:03d}Z"
    path = directory / "crash" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path.with_suffix(".json"), (json.dumps(content, indent=1, default=str) + "\n").encode())
    write(path, markdown(content).encode())
    return CrashReport(path, rank, kind, content["what"], content["cause"])


def latest_report(directory: Path) -> Path | None:
    """The newest report of a run, its Markdown; the JSON lies beside it.

    Each node reports its own ranks: of one attempt's reports, those that only lost a connection come second.
    """
    found = {path: json.loads(path.with_suffix(".json").read_text()) for path in (directory / "crash").glob("*Z.md")}
    if not found:
        return None
    newest = max(found)
    same = [path for path, content in found.items() if path == newest or _same_crash(content, found[newest])]
    return max(same, key=lambda path: (found[path]["kind"] != "connection", path))


def _same_crash(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Are these two nodes' reports of one crash?"""
    apart = datetime.fromisoformat(one["time"]) - datetime.fromisoformat(other["time"])
    return one["attempt"] == other["attempt"] and abs(apart.total_seconds()) < 30 and one["kind"] != other["kind"]


def _absent(waiting: Beat, heartbeats: Iterable[Beat], device: str) -> Beat | None:
    """The rank that went on without a collective in which another waits: it is beyond what it cannot have passed.

    A GPU's reductions are begun, not awaited, in their phase; votes are awaited everywhere.
    """
    if waiting.phase != "vote" and not (waiting.phase == "reduce" and device == "cpu"):
        return None
    furthest = max(heartbeats, key=lambda heartbeat: heartbeat.order, default=waiting)
    return furthest if furthest.order > waiting.order else None


def _died_of(death: Death, stacks: str) -> Death:
    """By the signal that came first: torch's handler, which prints C++ stacks at a fatal one, can itself abort."""
    found = re.search(r"^Fatal Python error: (.+)$", stacks, re.MULTILINE)
    number = _FATAL.get(found[1].strip()) if found else None
    return replace(death, code=-number) if number and death.code == -signal.SIGABRT else death


def _judge(
    deaths: Sequence[Death], failures: Mapping[int, dict[str, Any]], hang: Hang | None, absent: Beat | None
) -> tuple[int | None, str, str]:
    """Who was first, the kind of death, and a phrase with a place for where."""
    if hang is not None:
        if hang.lost:
            nodes = ", ".join(map(str, hang.lost))
            return None, "lost", f"node {nodes} gives no sign; rank {hang.heartbeat.rank} waited for it {_WHERE}"
        if absent is not None:
            waits = f"rank {hang.heartbeat.rank} has waited {hang.seconds:.1f} s in {hang.heartbeat.place}"
            return absent.rank, "hang", f"rank {absent.rank} is {_WHERE}, without a collective: {waits}"
        stayed = f"{'was stopped and ' if hang.stopped else ''}has not moved for {hang.seconds:.1f} s {_WHERE}"
        stayed += f" (its deadline is {hang.deadline:.0f} s)"
        return hang.heartbeat.rank, "hang", f"rank {hang.heartbeat.rank} {stayed}"
    own = [f for f in failures.values() if not f["follows"]]
    killed = [d for d in deaths if d.code is not None and d.code < 0]
    if own and all(d.code == -signal.SIGABRT for d in killed):
        return _failed("exception", min(own, key=lambda f: f["time"]))
    if killed:  # an abort is often a survivor's: its watchdog ends it when a peer is gone
        first = min(killed, key=lambda d: (d.code == -signal.SIGABRT, d.order, d.rank))
        return first.rank, "signal", f"rank {first.rank} was killed by {signal_name(-(first.code or 0))} {_WHERE}"
    unsaid = [d for d in deaths if d.code and d.rank not in failures]
    if unsaid:
        first = min(unsaid, key=lambda d: (d.order, d.rank))
        return first.rank, "exit", f"rank {first.rank} left with code {first.code} {_WHERE}"
    early = [d for d in deaths if d.code == 0]
    if early:
        first = min(early, key=lambda d: (d.order, d.rank))
        return first.rank, "exit", f"rank {first.rank} left with code 0 {_WHERE}, though nothing was decided"
    if failures:
        return _failed("connection", min(failures.values(), key=lambda f: f["time"]))
    return None, "unknown", "the ranks ended without a trace"


def _failed(kind: str, failure: Mapping[str, Any]) -> tuple[int, str, str]:
    message = failure["message"].strip().splitlines()
    text = f"{failure['type']}: {message[0][:120]}" if message else failure["type"]
    return failure["rank"], kind, f"rank {failure['rank']} failed {_WHERE} with {text}"


def _cause(
    rank: int | None,
    kind: str,
    what: str,
    failure: Mapping[str, Any],
    stacks: str,
    before: HostState,
    after: HostState,
) -> str:
    """The likely cause in one sentence, with the line of code where one is known."""
    frame = last_frame(failure.get("traceback", "") or stacks)
    at = f"; it was at {frame}" if frame else ""
    if kind == "hang":
        if "without a collective" in what:
            return f"rank {rank} left out a collective or took another path than its peers{at}."
        if "was stopped" in what:
            return f"rank {rank} was stopped by a signal (SIGSTOP, Ctrl-Z) or a debugger; the others waited for it."
        return f"rank {rank} waits or works without end{at}; the others wait for it."
    if kind == "lost":
        return "A machine or the network to it is lost; the ranks here did nothing wrong."
    if kind == "connection":
        return "A connection to a peer was lost and no rank here died first: look at the network and the other nodes."
    if kind == "exception":
        if "OutOfMemory" in failure["type"] or "out of memory" in failure["message"].lower():
            return f"rank {rank} ran out of memory{at}; a smaller runtime.micro_batch needs less."
        return f"{failure['type']} in rank {rank}{at}: {failure['message'].strip()[:300]}"
    if kind == "exit":
        return f"{what}: something ended the process without an exception of ours; the end of its log says more."
    if "SIGKILL" in what:
        if kills := oom_kills(before, after):
            return f"rank {rank} was killed by the kernel because memory ran out ({kills} such kills since the start)."
        return f"rank {rank} was killed from outside with SIGKILL; the kernel's own count of memory kills did not rise."
    if "SIGBUS" in what:
        return f"rank {rank} touched mapped memory that has no page behind it: a full /dev/shm or a cut file{at}."
    if "SIGSEGV" in what:
        return f"rank {rank}'s native code touched memory that is not its own{at}."
    if "SIGABRT" in what:
        return f"rank {rank}'s native code gave up; the end of its log says why{at}."
    return f"{what}{at}."


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_frame(text: str) -> str | None:
    """The innermost frame of a traceback (last) or of faulthandler's current thread (first): file:line (function).

    Of several stacks the first fatal signal's counts, since what handles one can die of another; else the last.
    """
    if "Traceback (most recent call last)" in text:
        found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)[-1:]
    else:
        fatal = text.partition("Fatal Python error")[2].partition("Current thread")[2]
        current = fatal or text.rpartition("Current thread")[2] or text
        found = _FRAME.findall(current)[:1]
    return f"{found[0][0]}:{found[0][1]} ({found[0][2]})" if found else None


def _failures(folder: Path) -> dict[int, dict[str, Any]]:
    found = {}
    for path in folder.glob("rank_*.json"):
        failure = json.loads(path.read_text())
        found[failure["rank"]] = failure
    return found


def _stacks(folder: Path, rank: int) -> str:
    path = folder / f"rank_{rank}.stacks"
    return path.read_text(errors="replace")[-_LONGEST:] if path.is_file() else ""


def _log_end(directory: Path, rank: int) -> list[str]:
    path = directory / "logs" / f"rank{rank}.log"
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST))
        return file.read().decode(errors="replace").splitlines()[-_LOG_LINES:]


def flights_of(folder: Path) -> list[Path]:
    """NCCL's records of collectives, one a rank."""
    return sorted(path for path in folder.glob("flight_*") if path.is_file())


class _Plain(pickle.Unpickler):
    """NCCL writes its records as pickles of plain values; one that asks for more is not read."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _unfinished(path: Path) -> list[str]:
    """The collectives that a rank has begun and not ended, oldest first."""
    try:
        with path.open("rb") as file:
            entries = _Plain(file).load()["entries"]
        return [
            f"{entry['profiling_name']}, number {entry['collective_seq_id']}, {entry['state']}"
            for entry in entries
            if entry["state"] != "completed"
        ][:_LOG_LINES]
    except (OSError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        return [f"cannot be read: {error}"]


def _ranks(
    directory: Path,
    deaths: Sequence[Death],
    heartbeats: Mapping[int, Beat],
    failures: Mapping[int, dict[str, Any]],
    stacks: Mapping[int, str],
) -> list[dict[str, Any]]:
    """Each rank's end: what it did, where it was and for how long, its stacks and the end of its log."""
    local = {death.rank: death for death in deaths}
    now = time.monotonic()
    ranks = []
    for rank in sorted({*local, *heartbeats, *failures}):
        death, heartbeat = local.get(rank), heartbeats.get(rank)
        failure = failures.get(rank)
        ranks.append(
            {
                "rank": rank,
                "here": death is not None,
                "pid": death.pid if death else heartbeat and heartbeat.pid,
                "exit": death and death.code,
                "signal": signal_name(-death.code) if death and death.code is not None and death.code < 0 else None,
                "phase": heartbeat and heartbeat.phase,
                "step": heartbeat and heartbeat.step,
                # another host has another clock
                "seconds_there": round(now - heartbeat.time, 3) if heartbeat and death else None,
                "exception": failure and {key: failure[key] for key in ("type", "message", "traceback")},
                "details": failure and failure["details"],
                "memory": (failure and failure["memory"]) or (death and {"resident": death.resident}),
                "descriptors": (failure and failure["descriptors"]["open"]) or (death and death.descriptors),
                "stacks": stacks.get(rank, ""),
                "log": _log_end(directory, rank),
            }
        )
    return ranks


def _environment(directory: Path) -> Any:
    path = directory / "env.json"
    return json.loads(path.read_text()) if path.is_file() else {"cpus": os.cpu_count()}
