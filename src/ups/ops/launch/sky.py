"""A run on machines that SkyPilot rents. SkyPilot has an environment of its own: only its command is used here.

`UPS_SKY` names that command where it is not on the path. Of spot machines SkyPilot rents others when they are taken
back; the run goes on from its checkpoints, which lie on storage that is mounted on each of them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.config.text import to_yaml
from ups.errors import UserError
from ups.ops.launch.job import Job, Record, asked, tool
from ups.ops.launch.slurm import PORT

SHARED, KEPT, OWN = "/ups-runs", "/ups-kept", "~/ups-runs"
"""Where runs are: on a volume that machines share; else on the machine's own disk, and copied to a bucket: what passes
for a disk there has no locks and cannot rename.
"""
COPY_EVERY = 60
"""Seconds between copies to a bucket."""
IDLE = 10
"""Minutes after which machines that do nothing are given back."""
_CONFIG, _PYTHON = "~/ups-launch/config.yaml", "~/ups-env/bin/python"
SUBMITTED = "submitted.yaml"
"""The configuration beside the task, under a name that no run's has."""
_ALIVE = ("pending", "submitted", "starting", "init", "setting_up", "running", "recovering", "cancelling")
_SINGLE = ("vast",)
"""Clouds whose machines cannot be joined."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._/-]*")


@dataclass(frozen=True)
class Rented:
    """Which machines: a cloud (and region), a kind of GPU, spot or not; the storage for runs: a bucket's address, or
    the name of a volume; what is installed there.
    """

    cloud: str
    gpu: str
    storage: str
    spot: bool = False
    install: str = ""

    @property
    def bucket(self) -> bool:
        return "://" in self.storage


def task(job: Job, rented: Rented) -> dict[str, Any]:
    """SkyPilot's description of the job."""
    count = job.gpus or 1
    resources: dict[str, Any] = {"infra": rented.cloud, "accelerators": f"{rented.gpu}:{count}"}
    if rented.spot:
        resources |= {"use_spot": True, "job_recovery": {"strategy": "EAGER_NEXT_REGION"}}
    else:
        resources |= {"autostop": {"idle_minutes": IDLE, "down": True}}
    found: dict[str, Any] = {"name": job.name, "resources": resources, "num_nodes": job.nodes}
    mounts: dict[str, Any] = {_CONFIG: str(job.folder / SUBMITTED)}
    found["file_mounts"] = mounts
    if rented.bucket:
        mounts[KEPT] = {"source": rented.storage, "mode": "MOUNT_CACHED"}
    else:
        found["volumes"] = {SHARED: rented.storage}
    if job.secrets:
        found["secrets"] = {name: None for name in job.secrets}  # which SkyPilot takes from where it is started
    setup = f"python3 -m venv ~/ups-env && ~/ups-env/bin/pip install {shlex.quote(rented.install)}\n"
    if rented.bucket:
        setup = f"command -v rsync || sudo apt-get install -y rsync\n{setup}"
    return found | {"setup": setup, "run": _run(job, rented)}


def submit(job: Job, rented: Rented, values: dict[str, Any]) -> list[Record]:
    """`values`: what the configuration says, for machines that do not have its file."""
    sky = command()
    credentials(sky, rented.cloud)
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / SUBMITTED).write_text(to_yaml(values))
    path = job.folder / "task.yaml"
    path.write_text(to_yaml(task(job, rented)))
    asked(started(sky, job, rented, path), "SkyPilot refused the job")
    return [Record("sky-spot" if rented.spot else "sky", job.name)]


def started(sky: str, job: Job, rented: Rented, path: Path) -> list[str]:
    """The command that rents the machines: a job that is recovered, or a cluster that ends by itself."""
    secrets = [word for name in job.secrets for word in ("--secret", name)]
    way = ["jobs", "launch"] if rented.spot else ["launch", "--cluster", job.name]
    return [sky, *way, "--yes", "--detach-run", *secrets, str(path)]


def check(job: Job, rented: Rented) -> None:
    """Refuse what SkyPilot would only find out once machines are rented."""
    cloud = rented.cloud.split("/")[0]
    if not _NAME.fullmatch(rented.cloud):
        raise UserError(f"--cloud {rented.cloud}: give a cloud of SkyPilot's, such as vast, runpod, lambda, k8s or aws")
    if job.nodes > 1 and cloud in _SINGLE:
        raise UserError(f"{cloud} rents single machines; use --nodes 1, or another --cloud")
    if job.nodes > 1 and rented.bucket:
        raise UserError(
            f"machines that train together need a file system that they share, which {rented.storage} is not; give "
            "--storage the name of a SkyPilot volume (docs/launch.md)"
        )
    if job.seeds:
        raise UserError("--seeds are for SLURM; launch a run for each seed: ups launch CONFIG seed=1 name=NAME1")


def command() -> str:
    remedy = "install it in an environment of its own (docs/launch.md) and name its command in UPS_SKY"
    return tool(os.environ.get("UPS_SKY", "sky"), remedy)


def credentials(sky: str, cloud: str) -> None:
    """Refuse a cloud that SkyPilot cannot use, before anything is rented."""
    name = cloud.split("/")[0]
    found = _told([sky, "check", {"k8s": "kubernetes"}.get(name, name)])
    if not any(found.values()):
        raise UserError(f"SkyPilot has no credentials for {name}; `{sky} check {name}` says what is missing")


def state(record: Record) -> str:
    if record.on == "sky":
        jobs = _told([command(), "queue", record.job]).get(record.job, [])
    else:
        jobs = [job for job in _told([command(), "jobs", "queue", "--all"]) if job["job_name"] == record.job]
    status = str(jobs[0]["status"]).rpartition(".")[2].lower() if jobs else ""
    return status if status in _ALIVE else f"ended ({status})" if status else "ended"


def _told(words: list[str]) -> Any:
    """What SkyPilot answers as JSON. That it starts its server first, or that there are no jobs, it says in words."""
    try:
        said = asked([*words, "--output", "json"], "SkyPilot does not answer")
    except UserError as error:
        if "No in-progress managed jobs" in str(error):
            return []
        raise
    lines = said.splitlines()
    begins = next((number for number, line in enumerate(lines) if line[:1] in ("{", "[")), None)
    if begins is None:
        raise UserError(
            f"SkyPilot does not answer as it should: {lines[-1] if lines else 'nothing'}; is it 0.10 or later?"
        )
    return json.loads("\n".join(lines[begins:]))


def logs(record: Record) -> str:
    what = ["jobs", "logs", "--name"] if record.on == "sky-spot" else ["logs"]
    return asked([command(), *what, record.job, "--no-follow"], "SkyPilot does not answer")


def stop(record: Record) -> str:
    what = ["jobs", "cancel", "--name", record.job] if record.on == "sky-spot" else ["down", record.job]
    asked([command(), *what, "--yes"], "SkyPilot could not stop it")
    return f"the machines of {record.job} are given back; what was saved is on its storage"


_COPYING = """mkdir -p {own}/{name}
[ ! -d {kept}/{name} ] || rsync -a {kept}/{name}/ {own}/{name}/  # what a machine before this one has saved
copy() {{ rsync -a --delete-delay --exclude '*.tmp' --exclude /data --exclude /store {own}/{name}/ {kept}/{name}/; }}
while sleep {every}; do copy; done &
copying=$!
trap 'kill -TERM "$work"' TERM INT
{run} &
work=$!
wait "$work"
while kill -0 "$work" 2>/dev/null; do wait "$work"; done
wait "$work"
code=$?
kill "$copying"
copy
exit "$code"
"""


def _run(job: Job, rented: Rented) -> str:
    ranks = f"--gpus {job.gpus or 1}"

    def ups(what: str, runs: str) -> str:
        return " ".join([_PYTHON, "-m ups", what, _CONFIG, "--runs", runs])

    if rented.bucket:
        run = f"{ups('run', OWN)} {ranks}"
        return _COPYING.format(own=OWN, kept=KEPT, name=job.name, every=COPY_EVERY, run=run)
    if job.nodes == 1:
        return f"exec {ups('run', SHARED)} {ranks}\n"
    meeting = f'"$(echo "$SKYPILOT_NODE_IPS" | head -n 1):{PORT}"'
    return (
        f"{ups('train', SHARED)} {ranks} --nodes {job.nodes} --rendezvous {meeting} || exit\n"
        f'[ "$SKYPILOT_NODE_RANK" -ne 0 ] || exec {ups("run", SHARED)}  # the stages are trained: all else\n'
    )
