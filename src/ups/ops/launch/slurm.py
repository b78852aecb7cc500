"""A run as a job of SLURM: queued again after a preemption or at the end of its time, an array of jobs for seeds."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ups.errors import UserError
from ups.ops.launch.job import Job, Record, asked, tool

PORT = 29500
LEAVE = 120
"""Seconds before the end of its time in which a job is told to save and leave."""
_PASSED = ("PATH", "HOME", "USER", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONPATH", "UPS_GRACE")
_FAMILIES = ("OMP_", "NCCL_", "TORCH_")

_RUN = """
# Asked to leave, by a more urgent job or at the end of its time, it saves, and goes on when it is queued again.
asked=
{stopping}
trap leave TERM

# Runs a command to its end, whatever signals come meanwhile; its exit code.
work() {{
  "$@" &
  child=$!
  wait "$child"
  while kill -0 "$child" 2>/dev/null; do wait "$child"; done  # a signal came here meanwhile
  wait "$child"  # whose code bash remembers
}}

{commands}
code=$?
state=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)
if [ "$code" -eq 75 ] && [ -n "$asked" ] && [ "$state" = RUNNING ]; then
  exec scontrol requeue "$SLURM_JOB_ID"  # the end of its time; after a preemption SLURM does so
fi
exit "$code"
"""


def script(job: Job, options: Sequence[str] = ()) -> str:
    """What is submitted. `options` are the user's own, such as partition=gpu."""
    return "\n".join(["#!/bin/bash", *(f"#SBATCH --{line}" for line in _lines(job, options)), _body(job)])


def submit(job: Job, options: Sequence[str]) -> list[Record]:
    text, path = script(job, options), job.folder / "job.sbatch"
    sbatch = tool("sbatch", "launch from a machine of the cluster, or use --on local")
    job.folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    number = asked([sbatch, "--parsable", str(path)], "SLURM refused the job").strip().split(";")[0]
    numbers = [f"{number}_{place}" for place in range(len(job.seeds))] or [number]
    return [Record("slurm", each, str(job.folder / f"slurm-{each}.log")) for each in numbers]


def state(record: Record) -> str:
    squeue = tool("squeue", "ask on a machine of the cluster")
    # A job that ended long ago is no longer known, which squeue says with an error: ask for all of the user's.
    found = asked([squeue, "--me", "--noheader", "--array", "--format", "%i %T"], "SLURM does not answer")
    states = dict(line.split(maxsplit=1) for line in found.splitlines() if line.strip())
    return states.get(record.job, "ended").strip().lower()


def stop(record: Record) -> str:
    scancel = tool("scancel", "stop it on a machine of the cluster")
    if state(record) == "ended":
        raise UserError("the run's job has ended; there is nothing to stop")
    asked([scancel, record.job], "SLURM refused to stop the job")
    return f"job {record.job} was asked to save and leave, and is not queued again"


def _lines(job: Job, options: Sequence[str]) -> Iterator[str]:
    for option in options:
        if not re.fullmatch(r"[a-z][a-z-]*(=[^\s#]+)?", option):
            raise UserError(f"--slurm {option}: give an option of sbatch as NAME=VALUE, such as partition=gpu")
    yield f"job-name={job.name}"
    yield f"nodes={job.nodes}"
    yield "ntasks-per-node=1"
    if not job.cpu:
        yield f"gpus-per-node={job.gpus or 1}"
    elif job.gpus:
        yield f"cpus-per-task={job.gpus}"
    if job.seeds:
        yield f"array=0-{len(job.seeds) - 1}"
    yield "requeue"
    yield "open-mode=append"
    yield f"output={job.folder / ('slurm-%A_%a.log' if job.seeds else 'slurm-%j.log')}"
    yield f"signal=B:TERM@{LEAVE}"
    named = [name for name in os.environ if name in _PASSED or name.startswith(_FAMILIES)]
    yield f"export={','.join(sorted({*named, *job.secrets}))}"
    yield from options


def _body(job: Job) -> str:
    seeded = ""
    if job.seeds:
        seeds = " ".join(map(str, job.seeds))
        seeded = f"\nseeds=({seeds})\nseed=${{seeds[$SLURM_ARRAY_TASK_ID]}}\n"
    more = f' seed="$seed" name={shlex.quote(job.name)}_seed"$seed"' if job.seeds else ""
    if job.nodes == 1:
        stopping = 'leave() { asked=yes; kill -TERM "$child" 2>/dev/null; }'
        commands = f"work {shlex.join(job.command('run'))}{more}"
    else:
        stopping = 'leave() { asked=yes; scancel --signal=TERM "$SLURM_JOB_ID"; }'
        meeting = f'"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):{PORT}"'
        train = f"{shlex.join(job.command('train'))}{more} --nodes {job.nodes} --rendezvous {meeting}"
        alone = shlex.join(replace(job, gpus=None).command("run"))
        commands = f"work srun --kill-on-bad-exit=0 {train} &&\n  work {alone}{more}  # all but the training"
    return seeded + _RUN.format(stopping=stopping, commands=commands)
