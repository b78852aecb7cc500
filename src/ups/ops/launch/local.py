"""A run in the background of this machine: it outlives the terminal, and what it prints goes to a file."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

from ups.errors import UserError
from ups.ops.launch.job import Job, Record


def text(job: Job) -> str:
    return f"{shlex.join(job.command('run'))} > {shlex.quote(str(log(job)))} 2>&1 &\n"


def submit(job: Job) -> list[Record]:
    job.folder.mkdir(parents=True, exist_ok=True)
    with log(job).open("ab") as out:
        process = subprocess.Popen(
            job.command("run"), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    return [Record("local", f"{process.pid}@{_began(process.pid)}", str(log(job)))]


def log(job: Job) -> Path:
    return job.folder / "output.log"


def state(record: Record) -> str:
    return "running" if _alive(record) else "ended"


def stop(record: Record) -> str:
    """Ask it to save and leave."""
    pid = _alive(record)
    if pid is None:
        raise UserError("the run has ended; there is nothing to stop")
    os.kill(pid, signal.SIGTERM)
    return f"process {pid} was asked to save and leave"


def _alive(record: Record) -> int | None:
    """Its number, unless it has ended, or that number is another process's by now."""
    pid, _, began = record.job.partition("@")
    return int(pid) if began and _began(int(pid)) == began else None


def _began(pid: int) -> str:
    """When a process began, in ticks since the machine did; nothing where there is none, or only its exit code."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
